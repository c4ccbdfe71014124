"""Families about ways through grids and graphs."""

from nip_ray.scenarios.code_validation.families.base import Draft, Draw, Family, collect

FAMILIES: list[Family] = []
_family = collect(FAMILIES)

_FOUR = "((0, 1), (1, 0), (0, -1), (-1, 0))"
_EIGHT = "((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1))"


@_family("competition")
def _regions(draw: Draw) -> Draft:
    around, how = draw.pick((_FOUR, "a side"), (_EIGHT, "a side or a corner"))
    what, tail = draw.pick(
        ("how many regions there are", "len(counts)"),
        ("the size of the largest region, or 0 if there is none", "max(counts, default=0)"),
        ("the sizes of all regions in ascending order", "sorted(counts)"),
    )
    return Draft(
        "regions survey_regions land_regions measure_islands",
        """`grid` is a list of rows of numbers 0 and 1, all of the same length. Cells with 1 that touch at $how belong to the same
        region<, and so do the neighbours of their neighbours|, directly or through other cells with 1>. `solve(grid)` returns
        $what.""",
        [
            """
            def solve(grid):
                seen = set()
                counts = []
                for i in range(len(grid)):
                    for j in range(len(grid[i])):
                        if grid[i][j] == 0 or (i, j) in seen:
                            continue
                        seen.add((i, j))
                        stack = [(i, j)]
                        count = 0
                        while stack:
                            row, column = stack.pop()
                            count += 1
                            for a, b in $around:
                                node = (row + a, column + b)
                                if 0 <= node[0] < len(grid) and 0 <= node[1] < len(grid[0]):
                                    if grid[node[0]][node[1]] == 1 and node not in seen:
                                        seen.add(node)
                                        stack.append(node)
                        counts.append(count)
                return $tail
            """,
            """
            def solve(grid):
                rest = {(i, j) for i, line in enumerate(grid) for j, value in enumerate(line) if value == 1}

                def helper(node):
                    if node not in rest:
                        return 0
                    rest.remove(node)
                    row, column = node
                    return 1 + sum(helper((row + a, column + b)) for a, b in $around)
                counts = []
                while rest:
                    counts.append(helper(min(rest)))
                return $tail
            """,
        ],
        lambda: [draw.grid(draw.number(2, 4), draw.number(2, 5), [0, 1])],
        [
            [[]],
            [[[0]]],
            [[[1]]],
            [[[1, 0], [0, 1]]],
            [[[1, 1], [0, 1]]],
            [[[1, 0, 1], [1, 0, 1], [1, 1, 1]]],
            [[[0, 1, 0], [1, 0, 1], [0, 1, 0]]],
        ],
        {"around": around, "how": how, "what": what, "tail": tail},
    )


@_family("competition")
def _maze(draw: Draw) -> Draft:
    wall = draw.pick("#", "X", "@")
    around, how = draw.pick((_FOUR, "up, down, left or right"), (_EIGHT, "in all eight directions, diagonal ones included"))

    def sample() -> list[list[str]]:
        rows = ["".join(line) for line in draw.grid(draw.number(2, 4), draw.number(2, 4) + 0, "..." + wall)]
        return [rows]

    return Draft(
        "shortest_way maze_steps escape_steps path_length",
        """`grid` is a list of texts of equal length, in which '$wall' is a wall and '.' is free. A step leads from a free cell to a
        free cell next to it ($how). `solve(grid)` returns the smallest number of steps from the upper left corner to the lower
        right one, or `-1` if there is no way<, as when one of these corners is a wall|; there is none when one of these corners is
        a wall>. <Start and goal may be the same cell.|In a grid of one free cell, it is 0.>""",
        [
            """
            def solve(grid):
                rows = len(grid)
                columns = len(grid[0])
                if grid[0][0] == '$wall' or grid[-1][-1] == '$wall':
                    return -1
                distance = {(0, 0): 0}
                queue = [(0, 0)]
                for node in queue:
                    if node == (rows - 1, columns - 1):
                        return distance[node]
                    for i, j in $around:
                        row = node[0] + i
                        column = node[1] + j
                        if 0 <= row < rows and 0 <= column < columns and grid[row][column] == '.' and (row, column) not in distance:
                            distance[row, column] = distance[node] + 1
                            queue.append((row, column))
                return -1
            """,
            """
            def solve(grid):
                free = {(i, j) for i, line in enumerate(grid) for j, char in enumerate(line) if char == '.'}
                target = (len(grid) - 1, len(grid[0]) - 1)
                if (0, 0) not in free:
                    return -1
                current = {(0, 0)}
                steps = 0
                while current and target not in current:
                    free -= current
                    current = {(row + i, column + j) for row, column in current for i, j in $around} & free
                    steps += 1
                return steps if current else -1
            """,
        ],
        sample,
        [
            [["."]],
            [[wall]],
            [["..", ".."]],
            [["." + wall, wall + "."]],
            [["...", f".{wall}.", "..."]],
            [["." + wall + "...", "." + wall + "." + wall + ".", "..." + wall + "."]],
        ],
        {"wall": wall, "around": around, "how": how},
    )


@_family("competition")
def _grid_path(draw: Draw) -> Draft:
    largest, diagonal = draw.coin(), draw.coin()
    return Draft(
        "grid_path path_sum cheapest_path walk_value",
        """A walk through `grid` (a list of rows of numbers, all of the same length of at least 1) begins in the upper left corner,
        ends in the lower right one, and goes one cell to the right$or one cell down in every step. `solve(grid)` returns the $kind
        possible sum of the numbers on a walk, <both corners included|with both ends>.""",
        [
            """
            def solve(grid):
                rows = len(grid)
                columns = len(grid[0])
                table = [[0] * columns for _ in range(rows)]
                for i in range(rows):
                    for j in range(columns):
                        values = []
                        if i > 0:
                            values.append(table[i - 1][j])
                        if j > 0:
                            values.append(table[i][j - 1])
                        $extra
                        table[i][j] = grid[i][j] + $fold(values, default=0)
                return table[-1][-1]
            """.replace(
                "$extra", "if i > 0 and j > 0:\n                            values.append(table[i - 1][j - 1])" if diagonal else ""
            ),
            """
            def solve(grid):
                def helper(i, j):
                    if i == len(grid) - 1 and j == len(grid[0]) - 1:
                        return grid[i][j]
                    values = []
                    if i + 1 < len(grid):
                        values.append(helper(i + 1, j))
                    if j + 1 < len(grid[0]):
                        values.append(helper(i, j + 1))
                    $extra
                    return grid[i][j] + $fold(values)
                return helper(0, 0)
            """.replace(
                "$extra",
                "if i + 1 < len(grid) and j + 1 < len(grid[0]):\n                        values.append(helper(i + 1, j + 1))"
                if diagonal
                else "",
            ),
        ],
        lambda: [draw.grid(draw.number(1, 4), draw.number(1, 4), range(-2, 10))],
        [[[[3]]], [[[1, 2, 3]]], [[[1], [2]]], [[[1, 2], [3, 4]]], [[[1, 9], [1, 1]]], [[[5, -2, 1], [1, 8, 1], [4, 2, 1]]]],
        {
            "kind": "largest" if largest else "smallest",
            "fold": "max" if largest else "min",
            "or": ", diagonally to the right and down," * diagonal + " or",
        },
    )


@_family("competition")
def _task_order(draw: Draw) -> Draft:
    largest = draw.coin()

    def sample() -> list[object]:
        n = draw.number(2, 6)
        places = draw.distinct(n, 0, n - 1)
        forward = [sorted(draw.distinct(2, 0, n - 1)) for _ in range(draw.number(0, 6))]
        edges = [[places[a], places[b]] for a, b in forward]
        return [n, edges + ([edges[0][::-1]] if edges and draw.rng.random() < 0.2 else [])]

    return Draft(
        "task_order schedule_tasks plan_order work_plan",
        """Tasks are numbered from 0 to `n` - 1, and a pair [a, b] in `edges` says that a must be done before b (pairs may be
        repeated). `solve(n, edges)` returns an order of all tasks in which, whenever several tasks could be next, the one with the
        $kind number is. <If there is no possible order, it returns an empty list.|Where no order is possible, the result is an
        empty list.>""",
        [
            """
            def solve(n, edges):
                counts = [0] * n
                for first, second in edges:
                    counts[second] += 1
                rest = list(range(n))
                result = []
                while rest:
                    group = [node for node in rest if counts[node] == 0]
                    if not group:
                        return []
                    node = $pick(group)
                    rest.remove(node)
                    result.append(node)
                    for first, second in edges:
                        if first == node:
                            counts[second] -= 1
                return result
            """,
            """
            def solve(n, edges):
                seen = []
                for _ in range(n):
                    group = []
                    for node in range(n):
                        if node not in seen and all(first in seen for first, second in edges if second == node):
                            group.append(node)
                    if not group:
                        return []
                    seen.append($pick(group))
                return seen
            """,
        ],
        sample,
        [
            [0, []],
            [1, []],
            [3, []],
            [2, [[0, 1]]],
            [2, [[1, 0]]],
            [2, [[0, 1], [1, 0]]],
            [4, [[3, 1], [1, 0], [2, 0]]],
            [3, [[0, 2], [0, 2]]],
        ],
        {"kind": "largest" if largest else "smallest", "pick": "max" if largest else "min"},
    )


@_family("competition")
def _cheapest_route(draw: Draw) -> Draft:
    directed, toll = draw.coin(), draw.number(0, 2)

    def sample() -> list[object]:
        n = draw.number(2, 6)
        return [n, [[*draw.distinct(2, 0, n - 1), draw.number(1, 9)] for _ in range(draw.number(1, 8))], 0, n - 1]

    both = "" if directed else "\n                        neighbours[second].append((first, cost))"
    return Draft(
        "cheapest_route route_cost travel_cost lowest_fare",
        """Places are numbered from 0 to `n` - 1. An entry [a, b, c] of `edges` is a road from a to b $way at the price c, which is at
        least 1.$rule `solve(n, edges, start, target)` returns the smallest total price of a route from `start` to `target`, or `-1`
        if there is none<. From a place to itself it is 0|; it is 0 from a place to itself>.""",
        [
            """
            def solve(n, edges, start, target):
                best = {start: 0}
                queue = [start]
                while queue:
                    node = queue.pop(0)
                    for first, second, cost in edges:
                        for left, right in $pairs:
                            if left == node:
                                value = best[node] + cost$more
                                if right not in best or value < best[right]:
                                    best[right] = value
                                    queue.append(right)
                return best.get(target, -1)
            """,
            """
            def solve(n, edges, start, target):
                neighbours = [[] for _ in range(n)]
                for first, second, cost in edges:
                    neighbours[first].append((second, cost))$both
                distance = [None] * n
                rest = [(0, start)]
                while rest:
                    rest.sort()
                    total, node = rest.pop(0)
                    if distance[node] is not None:
                        continue
                    distance[node] = total
                    for other, cost in neighbours[node]:
                        rest.append((total + cost$more, other))
                return -1 if distance[target] is None else distance[target]
            """.replace("$both", both.replace("                        ", "                    ")),
        ],
        sample,
        [
            [1, [], 0, 0],
            [2, [], 0, 1],
            [2, [[0, 1, 5]], 0, 1],
            [2, [[1, 0, 5]], 0, 1],
            [3, [[0, 1, 1], [1, 2, 1], [0, 2, 9]], 0, 2],
            [4, [[0, 1, 4], [0, 1, 2], [1, 3, 3]], 0, 3],
        ],
        {
            "way": "(one way)" if directed else "and back",
            "more": f" + {toll}" if toll else "",
            "rule": f" Each road costs a toll of {toll} on top." if toll else "",
            "pairs": "((first, second),)" if directed else "((first, second), (second, first))",
        },
    )
