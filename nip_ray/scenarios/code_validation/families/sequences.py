"""Families about stretches of lists and pairs of their entries."""

from nip_ray.scenarios.code_validation.families.base import Draft, Draw, Family, collect

FAMILIES: list[Family] = []
_family = collect(FAMILIES)


@_family("introductory")
def _longest_climb(draw: Draw) -> Draft:
    words, op = draw.pick(
        ("each number is larger than the one before", ">"),
        ("no number is smaller than the one before", ">="),
        ("each number is smaller than the one before", "<"),
    )
    return Draft(
        "longest_climb longest_stretch longest_run best_streak",
        """`solve(values)` returns the length of the longest stretch of neighbouring numbers in `values` in which $words. <A single
        number is a stretch of length 1.|One number alone counts as a stretch of length 1.> <For an empty list the answer is 0.|An
        empty list has the answer 0.>""",
        [
            """
            def solve(values):
                best = 0
                count = 0
                for i in range(len(values)):
                    if i > 0 and values[i] $op values[i - 1]:
                        count += 1
                    else:
                        count = 1
                    best = max(best, count)
                return best
            """,
            """
            def solve(values):
                if not values:
                    return 0
                best = 1
                left = 0
                for right in range(1, len(values)):
                    if not values[right] $op values[right - 1]:
                        left = right
                    if right - left + 1 > best:
                        best = right - left + 1
                return best
            """,
        ],
        lambda: [draw.numbers(4, 12, 0, 5)],
        [[[]], [[1]], [[1, 2, 3]], [[3, 2, 1]], [[2, 2, 2]], [[1, 2, 2, 3, 1, 2]], [[5, 1, 2, 3, 4]], [[4, 3, 2, 1, 5]]],
        {"words": words, "op": op},
    )


@_family("introductory")
def _differences(draw: Draw) -> Draft:
    k = draw.number(1, 3)
    what, fold = draw.pick(("the largest", "max"), ("the sum of all", "sum"))
    return Draft(
        "step_sizes difference_figure jump_size total_variation",
        """The distance of two numbers is how far they lie apart, never negative. `solve(values)` returns $what distance$s between
        numbers of `values` that stand exactly $k $places apart in the list. <Without such numbers it returns 0.|If the list is too
        short, it returns 0.>""",
        [
            """
            def solve(values):
                best = 0
                for i in range($k, len(values)):
                    value = abs(values[i] - values[i - $k])
                    best $update
                return best
            """,
            """
            def solve(values):
                return $fold((abs(second - first) for first, second in zip(values, values[$k:]))$default)
            """,
        ],
        lambda: [draw.numbers(k + 1, 8, -9, 9)],
        [[[]], [[1]], [[1, 5, 2, 9]], [[9, 2, 5, 1]], [[0, 0, 0, 0, 7]], [[-8, 0, 3, -3, 4]]],
        {
            "k": k,
            "places": "place" if k == 1 else "places",
            "what": what,
            "s": "s" if fold == "sum" else "",
            "fold": fold,
            "update": "= max(best, value)" if fold == "max" else "+= value",
            "default": ", default=0" if fold == "max" else "",
        },
    )


@_family("interview")
def _best_window(draw: Draw) -> Draft:
    largest, where = draw.coin(), draw.coin()
    return Draft(
        "best_window window_search best_block strongest_stretch",
        """Among all stretches of `width` neighbouring numbers in `values`, look for one with the $kind sum. `solve(values, width)`
        returns $what. <If the list is shorter than `width`|For a list shorter than `width`>, it returns `-1`. `width` is at
        least 1 and no number is negative.""",
        [
            """
            def solve(values, width):
                if len(values) < width:
                    return -1
                current = sum(values[:width])
                best = current
                start = 0
                for i in range(width, len(values)):
                    current += values[i] - values[i - width]
                    if current $op best:
                        best = current
                        start = i - width + 1
                return $tail
            """,
            """
            def solve(values, width):
                best = None
                start = -1
                for i in range(len(values) - width + 1):
                    total = sum(values[i:i + width])
                    if best is None or total $op best:
                        best = total
                        start = i
                return $tail2
            """,
        ],
        lambda: [draw.numbers(4, 11, 0, 6), draw.number(1, 4)],
        [[[], 1], [[3], 1], [[3], 2], [[1, 2], 2], [[2, 2, 2], 2], [[1, 5, 1, 5], 2], [[9, 0, 0, 9], 3], [[1, 2, 3, 4, 5], 3]],
        {
            "kind": "largest" if largest else "smallest",
            "op": ">" if largest else "<",
            "what": "the position, counted from 0, where the first such stretch begins" if where else "that sum",
            "tail": "start" if where else "best",
            "tail2": "start" if where else "-1 if best is None else best",
        },
    )


@_family("interview")
def _count_pairs(draw: Draw) -> Draft:
    what, test = draw.pick(("add up to", "values[i] + values[j] == target"), ("differ by", "abs(values[i] - values[j]) == target"))
    need = "target - value" if "+" in test else "value - target"
    extra = "" if "+" in test else " + (counts.get(value + target, 0) if target > 0 else 0)"
    return Draft(
        "count_pairs matching_pairs pair_number how_many_pairs",
        """`solve(values, target)` returns the number of pairs of places in the list `values`, the one before the other, whose numbers
        $what `target`. <Equal numbers at different places count separately.|Pairs of different places count separately, even with
        equal numbers.> <`target` is not negative.|`target` is at least 0.>""",
        [
            """
            def solve(values, target):
                counts = {}
                total = 0
                for value in values:
                    total += counts.get($need, 0)$extra
                    counts[value] = counts.get(value, 0) + 1
                return total
            """,
            """
            def solve(values, target):
                total = 0
                for i in range(len(values)):
                    for j in range(i + 1, len(values)):
                        if $test:
                            total += 1
                return total
            """,
        ],
        lambda: [draw.numbers(4, 10, 0, 5), draw.number(0, 7)],
        [[[], 0], [[1], 2], [[1, 1], 2], [[1, 1, 1], 0], [[0, 0, 0], 0], [[1, 3, 2, 2], 4], [[5, 3, 1], 2]],
        {"what": what, "test": test, "need": need, "extra": extra},
    )


@_family("interview")
def _best_stretch(draw: Draw) -> Draft:
    empty = draw.coin()
    return Draft(
        "best_stretch largest_sum richest_part top_stretch",
        """`solve(values)` returns the largest sum that a stretch of neighbouring numbers in `values` can have. $rule <Numbers may be
        negative.|There may be negative numbers.>""",
        [
            """
            def solve(values):
                best = $start
                current = 0
                for value in $rest:
                    current = max(current + value, $floor)
                    best = max(best, current)
                return best
            """,
            """
            def solve(values):
                best = $start
                for i in range(len(values)):
                    total = 0
                    for j in range(i, len(values)):
                        total += values[j]
                        if total > best:
                            best = total
                return best
            """,
        ],
        lambda: [draw.numbers(3, 10, -6, 6)],
        [[[4]], [[-4]], [[-3, -1, -2]], [[1, 2, 3]], [[5, -9, 6]], [[3, -1, 3]], [[-1, 4, -2, 5, -9, 6]]] + ([[[]]] if empty else []),
        {
            "rule": "The stretch may be empty, with the sum 0." if empty else "The stretch has at least one number, and so has `values`.",
            "start": "0" if empty else "values[0]",
            "rest": "values",
            "floor": "0" if empty else "value",
        },
    )


@_family("interview")
def _all_but_one(draw: Draw) -> Draft:
    what, op, unit = draw.pick(("sum", "+", 0), ("product", "*", 1))
    k = draw.number(0, 2)
    rule = "but its own" if k == 0 else f"but its own and the {k} before it (or as many as there are)"
    return Draft(
        "all_but_one without_self leave_out others_folded",
        """`solve(values)` returns a list as long as `values`: <entry i|its entry i> is the $what of all numbers of `values` $rule.
        <The $what of no numbers is $unit.|Where no numbers are left, it is $unit.> <Zeros and negative numbers occur.|Zeros may
        occur.>""",
        [
            """
            def solve(values):
                result = []
                for i in range(len(values)):
                    total = $unit
                    for j in range(len(values)):
                        if j > i or j < $before:
                            total = total $op values[j]
                    result.append(total)
                return result
            """,
            """
            def solve(values):
                n = len(values)
                left = [$unit] * (n + 1)
                right = [$unit] * (n + 1)
                for i in range(n):
                    left[i + 1] = left[i] $op values[i]
                for i in range(n - 1, -1, -1):
                    right[i] = right[i + 1] $op values[i]
                return [left[$place] $op right[i + 1] for i in range(n)]
            """,
        ],
        lambda: [draw.numbers(3, 6, -3, 5)],
        [[[]], [[4]], [[2, 3]], [[0, 2, 3]], [[1, 2, 3, 4]], [[5, 0, 0, 2]]],
        {
            "what": what,
            "op": op,
            "unit": unit,
            "rule": rule,
            "before": f"i - {k}" if k else "i",
            "place": f"max(i - {k}, 0)" if k else "i",
        },
    )


@_family("interview")
def _dominant(draw: Draw) -> Draft:
    k, at_least = draw.number(2, 4), draw.coin()
    part = {2: "half", 3: "a third", 4: "a quarter"}[k]
    return Draft(
        "dominant_values frequent_values common_values heavy_hitters",
        """`solve(values)` returns, in ascending order, all different numbers that make up $words $part of the list `values`. <An empty
        list gives an empty list.|For an empty list there are none.>""",
        [
            """
            def solve(values):
                result = []
                for value in sorted(set(values)):
                    if values.count(value) * $k $op len(values):
                        result.append(value)
                return result
            """,
            """
            def solve(values):
                counts = {}
                for value in values:
                    if value not in counts:
                        counts[value] = 0
                    counts[value] += 1
                return sorted(value for value, count in counts.items() if $k * count $op len(values))
            """,
        ],
        lambda: [draw.numbers(3, 9, 0, 3)],
        [[[]], [[2]], [[2, 1]], [[1, 1, 2, 2]], [[1, 2, 3]], [[1, 2, 3, 4]], [[3, 3, 1]], [[1, 1, 2, 3, 4, 5, 6, 2]]],
        {"k": k, "part": part, "words": "at least" if at_least else "more than", "op": ">=" if at_least else ">"},
    )


@_family("interview")
def _balance_points(draw: Draw) -> Draft:
    counted = draw.coin()
    return Draft(
        "balance_points balance_place pivot_index level_spots",
        """A place in the list `values` is balanced when the numbers before it and the numbers after it have the same sum (the number
        at the place itself belongs to neither; <no numbers have the sum 0|an empty side has the sum 0>). `solve(values)` returns
        $what.""",
        [
            """
            def solve(values):
                result = []
                left = 0
                right = sum(values)
                for i in range(len(values)):
                    right -= values[i]
                    if left == right:
                        result.append(i)
                    left += values[i]
                return $tail
            """,
            """
            def solve(values):
                result = [i for i in range(len(values)) if sum(values[:i]) == sum(values[i + 1:])]
                return $tail
            """,
        ],
        lambda: [draw.numbers(3, 8, -1, 1)],
        [[[]], [[7]], [[1, 2]], [[1, 5, 1]], [[0, 0, 0]], [[3, 0, 1, 2]], [[2, 1, 0, 3]], [[0, 5]], [[5, 0]]],
        {
            "what": "how many balanced places there are"
            if counted
            else "the position, counted from 0, of the first balanced place, or `-1` if there is none",
            "tail": "len(result)" if counted else "result[0] if result else -1",
        },
    )
