"""Families about intervals, searching and greedy choices."""

from nip_ray.scenarios.code_validation.families.base import Draft, Draw, Family, collect

FAMILIES: list[Family] = []
_family = collect(FAMILIES)


def _spans(draw: Draw, most: int) -> list[list[int]]:
    starts = draw.numbers(1, most, 0, 14)
    return [[start, start + draw.number(1, 6)] for start in starts]


@_family("interview")
def _merge_spans(draw: Draw) -> Draft:
    touch, what = draw.coin(), draw.coin()
    return Draft(
        "merge_spans join_intervals combine_ranges unite_spans",
        """`intervals` is a list of pairs [start, end] of numbers with start < end, in any order. Intervals that overlap$touch are
        joined into one, <until none do any more|as long as there are such intervals>. `solve(intervals)` returns $what.""",
        [
            """
            def solve(intervals):
                result = []
                for start, end in sorted(intervals):
                    if result and start $op result[-1][1]:
                        result[-1][1] = max(result[-1][1], end)
                    else:
                        result.append([start, end])
                return $tail
            """,
            """
            def solve(intervals):
                result = []
                for first, second in sorted(intervals, key=lambda pair: pair[0]):
                    if not result or result[-1][1] $not_op first:
                        result = result + [[first, second]]
                    elif second > result[-1][1]:
                        result[-1] = [result[-1][0], second]
                return $tail
            """,
        ],
        lambda: [_spans(draw, 6)],
        [
            [[]],
            [[[1, 2]]],
            [[[1, 2], [2, 3]]],
            [[[2, 3], [1, 2]]],
            [[[1, 9], [2, 3]]],
            [[[1, 3], [2, 5], [7, 8]]],
            [[[5, 6], [1, 2], [3, 4]]],
        ],
        {
            "touch": " or touch (one ends where another starts)" if touch else " (more than touching at an end)",
            "op": "<=" if touch else "<",
            "not_op": "<" if touch else "<=",
            "what": "the joined intervals in ascending order"
            if what
            else "the length of the longest one after that, or 0 if there is none",
            "tail": "result" if what else "max((end - start for start, end in result), default=0)",
        },
    )


@_family("competition")
def _rooms(draw: Draw) -> Draft:
    k = draw.number(0, 2)
    rule = (
        "A room can be used again in the moment in which it becomes free."
        if k == 0
        else f"After each use a room is cleaned for {k} {'unit' if k == 1 else 'units'} of time; it is free when this ends."
    )
    return Draft(
        "rooms_needed room_count busiest_moment fewest_rooms",
        """Each pair [start, end] in `intervals` is a booking that needs a room from start to end, where start < end. $rule
        `solve(intervals)` returns the smallest number of rooms with which all bookings are possible. <Without bookings it is 0.|For
        an empty list return 0.>""",
        [
            """
            def solve(intervals):
                rooms = []
                for start, end in sorted(intervals):
                    for i in range(len(rooms)):
                        if rooms[i] <= start:
                            rooms[i] = end$later
                            break
                    else:
                        rooms.append(end$later)
                return len(rooms)
            """,
            """
            def solve(intervals):
                order = []
                for start, end in intervals:
                    order.append((start, 1))
                    order.append((end$later, -1))
                best = 0
                count = 0
                for _, change in sorted(order):
                    count += change
                    best = max(best, count)
                return best
            """,
        ],
        lambda: [_spans(draw, 7)],
        [
            [[]],
            [[[1, 2]]],
            [[[1, 2], [2, 3]]],
            [[[1, 3], [2, 4]]],
            [[[1, 5], [1, 5], [1, 5]]],
            [[[0, 2], [3, 5], [4, 6]]],
            [[[0, 9], [1, 2], [3, 4], [5, 6]]],
            [[[0, 4], [5, 6], [6, 8]]],
        ],
        {"later": f" + {k}" if k else "", "rule": rule},
    )


@_family("competition")
def _most_bookings(draw: Draw) -> Draft:
    k = draw.number(0, 2)
    rule = (
        "starts when the one before it ends, or later"
        if k == 0
        else f"starts at least {k} {'unit' if k == 1 else 'units'} of time after the one before it ends"
    )
    return Draft(
        "most_bookings accept_requests best_plan fit_bookings",
        """<Choose as many pairs [start, end] of `intervals` as possible|As many pairs [start, end] of `intervals` as possible are to
        be chosen> so that each chosen one $rule (start < end always holds). `solve(intervals)` returns how many can be chosen.""",
        [
            """
            def solve(intervals):
                count = 0
                limit = None
                for start, end in sorted(intervals, key=lambda pair: pair[1]):
                    if limit is None or start >= limit$later:
                        count += 1
                        limit = end
                return count
            """,
            """
            def solve(intervals):
                ranked = sorted(intervals)
                table = []
                for i in range(len(ranked)):
                    best = 1
                    for j in range(i):
                        if ranked[j][1]$later <= ranked[i][0]:
                            best = max(best, table[j] + 1)
                    table.append(best)
                return max(table, default=0)
            """,
        ],
        lambda: [_spans(draw, 7)],
        [
            [[]],
            [[[1, 2]]],
            [[[1, 2], [2, 3]]],
            [[[1, 2], [3, 4]]],
            [[[1, 2], [4, 5]]],
            [[[0, 9], [1, 2], [4, 6]]],
            [[[1, 3], [2, 4], [3, 5]]],
            [[[5, 7], [0, 2], [1, 6]]],
        ],
        {"later": f" + {k}" if k else "", "rule": rule},
    )


@_family("interview")
def _first_place(draw: Draw) -> Draft:
    words, op, opposite = draw.pick(("at least", ">=", "<"), ("more than", ">", "<="))
    what = draw.coin()
    return Draft(
        "first_place lower_position search_sorted find_place",
        """The numbers in `values` are in ascending order, repetitions included. `solve(values, target)` returns $what $words
        `target`$none. <Only few numbers should have to be looked at.|It should not look at every number.>""",
        [
            """
            def solve(values, target):
                left = 0
                right = len(values)
                while left < right:
                    middle = (left + right) // 2
                    if values[middle] $op target:
                        right = middle
                    else:
                        left = middle + 1
                return $tail
            """,
            """
            def solve(values, target):
                left = -1
                right = len(values)
                while right - left > 1:
                    middle = left + (right - left) // 2
                    if values[middle] $opposite target:
                        left = middle
                    else:
                        right = middle
                left += 1
                return $tail
            """,
        ],
        lambda: [sorted(draw.numbers(1, 9, 0, 12)), draw.number(0, 13)],
        [[[], 3], [[3], 3], [[3], 2], [[3], 4], [[2, 2, 2], 2], [[1, 3, 5, 7], 5], [[1, 3, 5, 7], 8], [[1, 3, 5, 7], 0]],
        {
            "words": words,
            "op": op,
            "opposite": opposite,
            "what": "the position, counted from 0, of the first number that is" if what else "how many numbers there are that are",
            "none": "; if there is none, the length of the list" if what else "",
            "tail": "left" if what else "len(values) - left",
        },
    )


@_family("interview")
def _next_beyond(draw: Draw) -> Draft:
    words, op = draw.pick(("larger", ">"), ("smaller", "<"))
    what = draw.coin()
    none = draw.pick(-1, 0) if not what else -1
    return Draft(
        "next_beyond wait_for_next look_ahead following_extreme",
        """`solve(values)` returns a list as long as `values`. Its i-th entry is $what in `values` after the i-th that is $words than
        the i-th, or `$none` <if no such number follows|where there is none>. <Equal numbers are not $words.|An equal number does
        not count.>""",
        [
            """
            def solve(values):
                result = [$none] * len(values)
                stack = []
                for i in range(len(values)):
                    while stack and values[i] $op values[stack[-1]]:
                        j = stack.pop()
                        result[j] = $entry
                    stack.append(i)
                return result
            """,
            """
            def solve(values):
                result = []
                for j in range(len(values)):
                    best = $none
                    for i in range(j + 1, len(values)):
                        if values[i] $op values[j]:
                            best = $entry
                            break
                    result.append(best)
                return result
            """,
        ],
        lambda: [draw.numbers(3, 9, 1, 7)],
        [[[]], [[1]], [[1, 2]], [[2, 1]], [[2, 2]], [[1, 2, 3, 4]], [[4, 3, 2, 1]], [[3, 1, 2, 4, 1]]],
        {
            "words": words,
            "op": op,
            "none": none,
            "what": "how many places further on the first number stands" if what else "the first number",
            "entry": "i - j" if what else "values[i]",
        },
    )


@_family("competition")
def _fewest_jumps(draw: Draw) -> Draft:
    exact, k = draw.coin(), draw.number(0, 1)
    return Draft(
        "fewest_jumps jumps_to_end hop_count shortest_hops",
        """From place i of the list `values` one can jump to the right by $how `values[i]`$plus places, but not beyond the end of the
        list. `solve(values)` returns the smallest number of jumps from the first place to the last one, or `-1` if the last place
        cannot be reached. <`values` has at least one entry|`values` is not empty>, and no entry is negative.""",
        [
            """
            def solve(values):
                n = len(values)
                table = [0] + [None] * (n - 1)
                for i in range(n):
                    if table[i] is None:
                        continue
                    for j in $reach:
                        if j < n and (table[j] is None or table[j] > table[i] + 1):
                            table[j] = table[i] + 1
                return -1 if table[-1] is None else table[-1]
            """,
            """
            def solve(values):
                steps = 0
                current = {0}
                seen = {0}
                while current:
                    if len(values) - 1 in current:
                        return steps
                    steps += 1
                    changed = set()
                    for i in current:
                        for j in $reach:
                            if j < len(values) and j not in seen:
                                seen.add(j)
                                changed.add(j)
                    current = changed
                return -1
            """,
        ],
        lambda: [draw.numbers(3, 10, 0, 3)],
        [[[0]], [[3]], [[0, 1]], [[1, 0]], [[2, 0, 0]], [[1, 1, 1]], [[3, 2, 1, 0, 4]], [[2, 3, 1, 1, 4]], [[4, 1, 1, 1, 0, 0]]],
        {
            "how": "either 1 or" if exact else "1 place or more, up to",
            "plus": " + 1" * k,
            "reach": f"(i + 1, i + values[i]{' + 1' * k})" if exact else f"range(i + 1, i + values[i] + 1{' + 1' * k})",
        },
    )


@_family("competition")
def _rain_water(draw: Draw) -> Draft:
    deepest = draw.coin()
    return Draft(
        "rain_water held_water basin_volume deepest_pool",
        """`values` are heights of columns of width 1 that stand side by side. After rain, water stands on a column as high as the
        lower one of the highest column on its left and the highest on its right (if it is lower than both), and runs off at the
        ends. `solve(values)` returns $what. <No height is negative.|Heights are at least 0.>""",
        [
            """
            def solve(values):
                best = 0
                for i in range(1, len(values) - 1):
                    left = max(values[:i])
                    right = max(values[i + 1:])
                    value = min(left, right) - values[i]
                    if value > 0:
                        best $update
                return best
            """,
            """
            def solve(values):
                n = len(values)
                left = [0] * (n + 1)
                right = [0] * (n + 1)
                for i in range(n):
                    left[i + 1] = max(left[i], values[i])
                for i in range(n - 1, -1, -1):
                    right[i] = max(right[i + 1], values[i])
                return $fold((min(left[i + 1], right[i]) - values[i] for i in range(n))$default)
            """,
        ],
        lambda: [draw.numbers(3, 10, 0, 6)],
        [[[]], [[5]], [[3, 1]], [[2, 0, 2]], [[3, 0, 1]], [[1, 0, 3]], [[5, 2, 1, 2, 1, 5]], [[1, 2, 3, 2, 1]], [[4, 1, 3, 1, 5, 0, 2]]],
        {
            "what": "the depth of the deepest water on any column, or 0 without water"
            if deepest
            else "the total amount of water that stays",
            "update": "= max(best, value)" if deepest else "+= value",
            "fold": "max" if deepest else "sum",
            "default": ", default=0" if deepest else "",
        },
    )
