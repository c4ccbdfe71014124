"""Families about grids."""

from nip_ray.scenarios.code_validation.families.base import Draft, Draw, Family, collect

FAMILIES: list[Family] = []
_family = collect(FAMILIES)

_FOUR = "((0, 1), (1, 0), (0, -1), (-1, 0))"
_EIGHT = "((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1))"


@_family("introductory")
def _turn_grid(draw: Draw) -> Draft:
    words, first, second = draw.pick(
        ("turned by 90 degrees clockwise", "grid[rows - 1 - i][j]", "[list(line)[::-1] for line in zip(*grid)]"),
        ("turned by 90 degrees anticlockwise", "grid[i][columns - 1 - j]", "[list(line) for line in zip(*grid)][::-1]"),
        ("mirrored so that its rows become its columns", "grid[i][j]", "[list(line) for line in zip(*grid)]"),
    )
    return Draft(
        "turn_grid rotate_board flip_matrix turned_table",
        """`grid` is a list of rows, at least one, all of the same length of at least 1. `solve(grid)` returns the grid $words, <again
        as a list of rows|also as a list of rows>. <`grid` itself is left alone.|The given grid is not changed.>""",
        [
            """
            def solve(grid):
                rows = len(grid)
                columns = len(grid[0])
                result = []
                for j in range(columns):
                    line = []
                    for i in range(rows):
                        line.append($first)
                    result.append(line)
                return result
            """,
            """
            def solve(grid):
                return $second
            """,
        ],
        lambda: [draw.grid(draw.number(1, 4), draw.number(1, 4), range(10))],
        [[[[1]]], [[[1, 2]]], [[[1], [2]]], [[[1, 2], [3, 4]]], [[[1, 2, 3], [4, 5, 6]]]],
        {"words": words, "first": first, "second": second},
    )


@_family("introductory")
def _grid_sums(draw: Draw) -> Draft:
    words, test = draw.pick(
        ("on the border of the grid", "i in (0, rows - 1) or j in (0, columns - 1)"),
        ("not on the border of the grid", "0 < i < rows - 1 and 0 < j < columns - 1"),
        ("whose row and column numbers, both from 0, have an even sum", "(i + j) % 2 == 0"),
        ("to the right of the diagonal, that is, with a column number larger than the row number", "j > i"),
    )
    what, add = draw.pick(("the sum of the numbers", "grid[i][j]"), ("how many positive numbers there are", "grid[i][j] > 0"))
    return Draft(
        "grid_sum cell_total region_total board_measure",
        """`solve(grid)` <returns|computes> $what $words. `grid` is a list of rows of equal length, at least one row and one column.
        <Where there is nothing to count the result is 0.|It is 0 if there are none.>""",
        [
            """
            def solve(grid):
                rows = len(grid)
                columns = len(grid[0])
                total = 0
                for i in range(rows):
                    for j in range(columns):
                        if $test:
                            total += $add
                return total
            """,
            """
            def solve(grid):
                rows = len(grid)
                columns = len(grid[0])
                return sum($add for i in range(rows) for j in range(columns) if $test)
            """,
        ],
        lambda: [draw.grid(draw.number(1, 5), draw.number(1, 5), range(-3, 7))],
        [[[[5]]], [[[1, 2]]], [[[1], [2]]], [[[1, 2], [3, 4]]], [[[1, 2, 3], [4, 5, 6], [7, 8, 9]]]],
        {"words": words, "what": what, "add": add, "test": test},
    )


@_family("interview")
def _count_neighbours(draw: Draw) -> Draft:
    around, diagonal = draw.pick((_FOUR, False), (_EIGHT, True))
    mark, blank = draw.pick(("*", "."), ("#", "-"), ("x", "o"))
    return Draft(
        "count_neighbours mine_map number_field hint_grid",
        """`grid` is a list of texts of equal length, made of '$mark' (a mine) and '$blank' (free). `solve(grid)` returns the grid with
        every free cell replaced by the number of mines among the cells that touch it $how; mines stay. <A free cell without mines
        around it becomes '0'.|Free cells near no mine become '0'.>""",
        [
            """
            def solve(grid):
                result = []
                for row in range(len(grid)):
                    line = ''
                    for column in range(len(grid[row])):
                        if grid[row][column] == '$mark':
                            line += '$mark'
                            continue
                        count = 0
                        for i, j in $around:
                            if 0 <= row + i < len(grid) and 0 <= column + j < len(grid[row]):
                                if grid[row + i][column + j] == '$mark':
                                    count += 1
                        line += str(count)
                    result.append(line)
                return result
            """,
            """
            def solve(grid):
                seen = {(row, column) for row, line in enumerate(grid) for column, char in enumerate(line) if char == '$mark'}
                result = []
                for row, line in enumerate(grid):
                    changed = []
                    for column in range(len(line)):
                        if (row, column) in seen:
                            changed.append('$mark')
                        else:
                            changed.append(str(sum((row + i, column + j) in seen for i, j in $around)))
                    result.append(''.join(changed))
                return result
            """,
        ],
        lambda: (lambda width: [["".join(line) for line in draw.grid(draw.number(1, 4), width, mark + blank)]])(draw.number(2, 5)),
        [
            [[]],
            [[mark]],
            [[blank]],
            [[mark + blank + mark]],
            [[blank * 3, blank + mark + blank, blank * 3]],
            [[mark * 3, mark + blank + mark, mark * 3]],
        ],
        {
            "around": around,
            "mark": mark,
            "blank": blank,
            "how": "from the side or at a corner" if diagonal else "from the side (corners do not count)",
        },
    )


@_family("interview")
def _spiral(draw: Draw) -> Draft:
    inward = draw.coin()
    return Draft(
        "spiral_order walk_spiral read_round unroll_grid",
        """`solve(grid)` returns all entries of `grid` (a list of rows of equal length) in <spiral order|the order of a spiral>: along
        the first row from left to right, down the last column, back along the last row, up the first column, and so on inward$end.
        <An empty grid gives an empty list.|For an empty list of rows return an empty list.>""",
        [
            """
            def solve(grid):
                result = []
                rows = [list(line) for line in grid]
                while rows:
                    result += rows.pop(0)
                    rows = [list(line) for line in zip(*rows)][::-1]
                return result$flip
            """,
            """
            def solve(grid):
                result = []
                if not grid:
                    return result
                low, high = (0, len(grid) - 1)
                left, right = (0, len(grid[0]) - 1)
                while low <= high and left <= right:
                    for column in range(left, right + 1):
                        result.append(grid[low][column])
                    for row in range(low + 1, high + 1):
                        result.append(grid[row][right])
                    if low < high:
                        for column in range(right - 1, left - 1, -1):
                            result.append(grid[high][column])
                    if left < right:
                        for row in range(high - 1, low, -1):
                            result.append(grid[row][left])
                    low += 1
                    high -= 1
                    left += 1
                    right -= 1
                return result$flip
            """,
        ],
        lambda: [draw.grid(draw.number(1, 4), draw.number(1, 4), range(20))],
        [
            [[]],
            [[[1]]],
            [[[1, 2, 3]]],
            [[[1], [2], [3]]],
            [[[1, 2], [3, 4]]],
            [[[1, 2, 3], [4, 5, 6], [7, 8, 9]]],
            [[[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]],
        ],
        {"flip": "" if inward else "[::-1]", "end": "" if inward else ", and then turns the list round, so that it begins in the middle"},
    )
