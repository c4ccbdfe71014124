"""Families about lists of numbers that are gone through once."""

from nip_ray.scenarios.code_validation.families.base import Draft, Draw, Family, collect

FAMILIES: list[Family] = []
_family = collect(FAMILIES)


@_family("introductory")
def _count_beyond(draw: Draw) -> Draft:
    words, op = draw.pick(("greater than", ">"), ("at least", ">="), ("smaller than", "<"), ("at most", "<="))
    kind, test = draw.pick(("", ""), ("even ", " and value % 2 == 0"), ("odd ", " and value % 2 == 1"), ("positive ", " and value > 0"))
    what, add = draw.pick(("how many", "1"), ("the sum of all", "value"))
    return Draft(
        "count_beyond measure_list threshold_tally summary_of survey",
        """<Write|Implement> `solve(values, limit)` that <returns|computes> $what ${kind}numbers in the list `values` $that are $words
        `limit`. <An empty list gives 0.|For an empty list return 0.>""",
        [
            """
            def solve(values, limit):
                total = 0
                for value in values:
                    if value $op limit$test:
                        total += $add
                return total
            """,
            """
            def solve(values, limit):
                return sum($add for value in values if value $op limit$test)
            """,
        ],
        lambda: [draw.numbers(3, 9, -3, 6), draw.number(-2, 5)],
        [[[], 3], [[3], 3], [[2, 2, 2], 2], [[4, 5, 6, 7], 5], [[-2, 0, 2], 0]],
        {
            "words": words,
            "op": op,
            "kind": kind,
            "test": test,
            "what": what,
            "add": add,
            "that": "there are that" if add == "1" else "that",
        },
    )


@_family("introductory")
def _runner_up(draw: Draw) -> Draft:
    largest, default = draw.coin(), draw.pick(-1, 0, None)
    return Draft(
        "runner_up second_place next_best second_value",
        """`solve(values)` returns the second $kind of the different numbers in `values`, <so that a repeated number counts only
        once|where repetitions do not count>. <If there are fewer than two different numbers|With fewer than two different numbers>,
        it returns `$default`.""",
        [
            """
            def solve(values):
                ranked = sorted(set(values)$flag)
                if len(ranked) < 2:
                    return $default
                return ranked[1]
            """,
            """
            def solve(values):
                best = None
                second = None
                for value in values:
                    if best is None or value $op best:
                        second = best
                        best = value
                    elif value != best and (second is None or value $op second):
                        second = value
                return $default if second is None else second
            """,
        ],
        lambda: [draw.numbers(2, 7, -4, 6)],
        [[[]], [[5]], [[5, 5]], [[5, 4]], [[4, 5]], [[5, 5, 4]], [[1, 2, 3]], [[3, 2, 1]], [[-1, -2, -1]]],
        {
            "kind": "largest" if largest else "smallest",
            "default": default,
            "flag": ", reverse=True" if largest else "",
            "op": ">" if largest else "<",
        },
    )


@_family("introductory")
def _running_values(draw: Draw) -> Draft:
    what, fold = draw.pick(("sum", "current + value"), ("maximum", "max(current, value)"), ("minimum", "min(current, value)"))
    k = draw.number(1, 5)
    return Draft(
        "running_values running_list accumulate_list prefix_values",
        """`solve(values)` returns a list as long as `values`: its i-th entry is the $what of the first i numbers of `values`,
        <with|plus> $k added. <The list `values` itself is not to be changed.|An empty list gives an empty list.>""",
        [
            """
            def solve(values):
                result = []
                for i, value in enumerate(values):
                    if i == 0:
                        current = value
                    else:
                        current = $fold
                    result.append(current + $k)
                return result
            """,
            """
            def solve(values):
                return [$builtin(values[:i + 1]) + $k for i in range(len(values))]
            """,
        ],
        lambda: [draw.numbers(2, 8, -5, 9)],
        [[[]], [[3]], [[-1, -2]], [[1, 2, 3]], [[3, 1, 2, 5, 4]], [[-5, 0, -7]]],
        {"what": what, "fold": fold, "k": k, "builtin": {"sum": "sum", "maximum": "max", "minimum": "min"}[what]},
    )


@_family("introductory")
def _rotate_list(draw: Draw) -> Draft:
    right = draw.coin()
    return Draft(
        "rotate_list turn_list shift_around cycle_list",
        """<Move|Shift> all entries of `values` `shift` places to the $way; <what falls out at one end comes in again at the
        other|entries that leave at one end come in at the other>. `solve(values, shift)` returns the new list. `shift` is not
        negative <and may be larger than the list is long|but may be more than the length of the list>.""",
        [
            """
            def solve(values, shift):
                if not values:
                    return []
                i = shift % len(values)
                return values[$cut:] + values[:$cut]
            """,
            """
            def solve(values, shift):
                n = len(values)
                result = []
                for i in range(n):
                    result.append(values[(i $sign shift) % n])
                return result
            """,
        ],
        lambda: [draw.numbers(2, 7, 0, 9), draw.number(0, 12)],
        [[[], 2], [[1], 5], [[1, 2, 3], 0], [[1, 2, 3], 1], [[1, 2, 3], 3], [[1, 2, 3, 4], 6]],
        {"way": "right" if right else "left", "cut": "len(values) - i" if right else "i", "sign": "-" if right else "+"},
    )


@_family("introductory")
def _peaks(draw: Draw) -> Draft:
    peak, positions = draw.coin(), draw.coin()
    return Draft(
        "peaks turning_points find_peaks local_extremes",
        """A number in a list is a $name if it <has two neighbours and is|stands between two neighbours and is> $than both of them;
        <the first and the last number never are|numbers at the ends do not qualify>. `solve(values)` returns $what.""",
        [
            """
            def solve(values):
                result = []
                for i in range(1, len(values) - 1):
                    if values[i] $op values[i - 1] and values[i] $op values[i + 1]:
                        result.append(i)
                return $tail
            """,
            """
            def solve(values):
                result = []
                i = 0
                for left, middle, right in zip(values, values[1:], values[2:]):
                    i += 1
                    if left $rev middle $op right:
                        result.append(i)
                return $tail
            """,
        ],
        lambda: [draw.numbers(4, 10, 0, 4)],
        [[[]], [[1]], [[1, 2]], [[1, 2, 1]], [[2, 1, 2]], [[1, 2, 2, 1]], [[3, 1, 2, 0, 2, 1, 3]]],
        {
            "name": "peak" if peak else "valley",
            "than": "larger than" if peak else "smaller than",
            "what": "the list of positions of all of them, counted from 0" if positions else "how many there are",
            "op": ">" if peak else "<",
            "rev": "<" if peak else ">",
            "tail": "result" if positions else "len(result)",
        },
    )


@_family("introductory")
def _merge_ordered(draw: Draw) -> Draft:
    up, unique = draw.coin(), draw.coin()

    def sample() -> list[list[int]]:
        return [sorted(draw.numbers(0, 6, 0, 9), reverse=not up) for _ in range(2)]

    return Draft(
        "merge_ordered combine_sorted join_sorted merge_lists",
        """The lists `first` and `second` are in $order order. `solve(first, second)` returns one list in the same order with $what.
        <Both lists may be empty.|Each of them can be empty.>""",
        [
            """
            def solve(first, second):
                result = []
                i = 0
                j = 0
                while i < len(first) or j < len(second):
                    if j == len(second) or (i < len(first) and first[i] $op second[j]):
                        value = first[i]
                        i += 1
                    else:
                        value = second[j]
                        j += 1
                    $keep
                return result
            """,
            """
            def solve(first, second):
                return sorted($both$flag)
            """,
        ],
        sample,
        [[[], []], [[1], []], [[], [1]], [[2, 2], [2]], [[1, 3] if up else [3, 1], [2, 4] if up else [4, 2]], [[5], [1]], [[1], [5]]],
        {
            "order": "ascending" if up else "descending",
            "what": "every number that occurs, once" if unique else "all their numbers, repetitions included",
            "op": "<=" if up else ">=",
            "keep": f"if not result or result[-1] != value:\n{24 * ' '}result.append(value)" if unique else "result.append(value)",
            "both": "set(first + second)" if unique else "first + second",
            "flag": "" if up else ", reverse=True",
        },
    )


@_family("introductory")
def _split_around(draw: Draw) -> Draft:
    small_first, with_pivot = draw.coin(), draw.coin()
    first, last = ("<" if small_first else ">"), (">" if small_first else "<")
    return Draft(
        "split_around arrange_by divide_list sort_around",
        """`solve(values, limit)` returns the numbers of `values` in a new order: first those $one `limit`, then those equal to it,
        <and at the end|then> those $two it. <Within each of the three parts the order stays as it was.|Numbers of the same part
        keep their order.>$rule""",
        [
            """
            def solve(values, limit):
                left = []
                middle = []
                right = []
                for value in values:
                    if value $first limit:
                        left.append(value)
                    elif value == limit:
                        middle.append(value)
                    else:
                        right.append(value)
                return left + middle$tail + right
            """,
            """
            def solve(values, limit):
                result = [value for value in values if value $first limit]
                result += [limit] * ($number)
                result += [value for value in values if value $last limit]
                return result
            """,
        ],
        lambda: [draw.numbers(3, 9, 0, 6), draw.number(1, 5)],
        [[[], 1], [[1], 1], [[2], 1], [[0], 1], [[3, 1, 2], 2], [[2, 2], 2], [[5, 1, 4, 3, 3, 2], 3]],
        {
            "one": "smaller than" if small_first else "larger than",
            "two": "larger than" if small_first else "smaller than",
            "first": first,
            "last": last,
            "rule": "" if with_pivot else " Of the equal ones only one is kept.",
            "tail": "" if with_pivot else "[:1]",
            "number": "values.count(limit)" if with_pivot else "min(values.count(limit), 1)",
        },
    )


@_family("introductory")
def _interleave(draw: Draw) -> Draft:
    k, second_first = draw.number(1, 3), draw.coin()
    a, b = ("others", "values") if second_first else ("values", "others")
    return Draft(
        "interleave weave zip_lists alternate",
        """`solve(values, others)` mixes two lists: $k from `$a`, then $k from `$b`, and so on in turn, each list in its own order.
        <When one list is used up, the rest of the other follows.|Once a list has no entries left, all that remains of the other
        follows.>""",
        [
            """
            def solve(values, others):
                result = []
                i = 0
                while i < len(values) or i < len(others):
                    result += $a[i:i + $k]
                    result += $b[i:i + $k]
                    i += $k
                return result
            """,
            """
            def solve(values, others):
                result = []
                for i in range(0, max(len(values), len(others)), $k):
                    result.extend($a[i:i + $k])
                    result.extend($b[i:i + $k])
                return result
            """,
        ],
        lambda: [draw.numbers(0, 7, 0, 9), draw.numbers(0, 7, 10, 19)],
        [[[], []], [[1], []], [[], [1]], [[1, 2, 3, 4], [5, 6, 7, 8]], [[1, 2, 3, 4, 5], [6]], [[1], [6, 7, 8, 9, 10]]],
        {"k": k, "a": a, "b": b},
    )


@_family("introductory")
def _in_chunks(draw: Draw) -> Draft:
    what, fold = draw.pick(
        ("the sum", "sum(group)"),
        ("the largest number", "max(group)"),
        ("the smallest number", "min(group)"),
        ("the first number", "group[0]"),
    )
    drop = draw.coin()
    return Draft(
        "in_chunks chunk_values block_summary summarise_blocks",
        """Cut `values` into blocks of `width` neighbouring numbers, from the left. `solve(values, width)` returns the list of
        $what of each block. $rule `width` is at least 1.""",
        [
            """
            def solve(values, width):
                result = []
                for i in range(0, len(values)$end, width):
                    group = values[i:i + width]
                    result.append($fold)
                return result
            """,
            """
            def solve(values, width):
                result = []
                group = []
                for value in values:
                    group.append(value)
                    if len(group) == width:
                        result.append($fold)
                        group = []
                if $last:
                    result.append($fold)
                return result
            """
            if not drop
            else """
            def solve(values, width):
                result = []
                group = []
                for value in values:
                    group.append(value)
                    if len(group) == width:
                        result.append($fold)
                        group = []
                return result
            """,
        ],
        lambda: [draw.numbers(3, 10, -5, 9), draw.number(1, 4)],
        [[[], 2], [[1], 1], [[1], 2], [[1, 2], 2], [[3, 1, 2], 2], [[1, 2, 3, 4], 2], [[4, 3, 2, 1, 5], 3]],
        {
            "what": what,
            "fold": fold,
            "rule": "A shorter block at the end is left out." if drop else "The last block may be shorter.",
            "end": " - width + 1" if drop else "",
            "last": "group",
        },
    )


@_family("introductory")
def _unique_values(draw: Draw) -> Draft:
    last, most = draw.coin(), draw.number(1, 3)
    times = "once" if most == 1 else f"{most} times"
    return Draft(
        "unique_values drop_repeats thin_repeats limit_copies",
        """`solve(values)` returns `values` with no number more than $times: of a number that occurs more often, the $which
        <occurrences|copies> are kept and the others <are left out|removed>. <What is kept stays in its order.|The order does not
        change.>""",
        [
            """
            def solve(values):
                counts = {}
                result = []
                for value in $forward:
                    counts[value] = counts.get(value, 0) + 1
                    if counts[value] <= $most:
                        result.append(value)
                return result$back
            """,
            """
            def solve(values):
                result = []
                for i in range(len(values)):
                    if values[$part].count(values[i]) < $most:
                        result.append(values[i])
                return result
            """,
        ],
        lambda: [draw.numbers(4, 11, 0, 3)],
        [[[]], [[1]], [[1, 1]], [[1, 2, 1]], [[1, 1, 1, 1, 1]], [[1, 2, 3, 1, 2, 3, 1]], [[2, 1, 1, 1, 1, 2]]],
        {
            "times": times,
            "most": most,
            "which": "last" if last else "first",
            "forward": "reversed(values)" if last else "values",
            "back": "[::-1]" if last else "",
            "part": "i + 1:" if last else ":i",
        },
    )
