"""Families that recursion or dynamic programming solves."""

from nip_ray.scenarios.code_validation.families.base import Draft, Draw, Family, collect

FAMILIES: list[Family] = []
_family = collect(FAMILIES)


@_family("interview")
def _climb_ways(draw: Draw) -> Draft:
    sizes = sorted(draw.distinct(draw.number(2, 3), 1, 4))
    k = draw.number(3, 6)
    return Draft(
        "climb_ways count_climbs stair_ways ways_up",
        """A staircase has `n` steps. One can go up by $sizes steps at a time, but may not <stand on|touch> a step whose number is
        divisible by $k (the last step, `n`, is always allowed; steps are numbered from 1). `solve(n)` returns the number of ways to
        get from the floor to exactly step `n`; ways that differ in their order are different. <For `n` = 0 there is one way.|There
        is one way to climb 0 steps.>""",
        [
            """
            def solve(n):
                ways = [0] * (n + 1)
                ways[0] = 1
                for i in range(1, n + 1):
                    if i % $k == 0 and i != n:
                        continue
                    for step in $sizes_list:
                        if step <= i:
                            ways[i] += ways[i - step]
                return ways[n]
            """,
            """
            def solve(n):
                seen = {}

                def helper(i):
                    if i == n:
                        return 1
                    if i > n or (i > 0 and i % $k == 0):
                        return 0
                    if i not in seen:
                        seen[i] = sum(helper(i + step) for step in $sizes_list)
                    return seen[i]
                return helper(0)
            """,
        ],
        lambda: [draw.number(5, 24)],
        [[0], [1], [2], [3], [4], [k], [k + 1], [2 * k]],
        {"sizes": ", ".join(map(str, sizes[:-1])) + f" or {sizes[-1]}", "sizes_list": sizes, "k": k},
    )


@_family("interview")
def _nested_sum(draw: Draw) -> Draft:
    words, weight = draw.pick(
        ("times its depth", "depth"), ("times the square of its depth", "depth * depth"), ("plus its depth", None), ("minus its depth", -1)
    )
    value = {None: "value + depth", -1: "value - depth"}.get(weight, f"value * {weight}")  # type: ignore[arg-type]

    def nested(level: int) -> list[object]:
        return [nested(level + 1) if level < 4 and draw.rng.random() < 0.4 else draw.number(-3, 9) for _ in range(draw.number(0, 3))]

    return Draft(
        "nested_sum deep_sum weigh_nested depth_sum",
        """`values` is a list of numbers and of lists, which may again contain numbers and lists, and so on. The depth of a number is
        <how many lists it stands in|the number of lists around it>, so at least 1. `solve(values)` adds up, over all numbers, the
        number $words. <An empty list gives 0.|Empty lists add nothing.>""",
        [
            """
            def solve(values):
                def helper(group, depth):
                    total = 0
                    for value in group:
                        if isinstance(value, list):
                            total += helper(value, depth + 1)
                        else:
                            total += $value
                    return total
                return helper(values, 1)
            """,
            """
            def solve(values):
                total = 0
                stack = [(values, 0)]
                while stack:
                    value, depth = stack.pop()
                    if isinstance(value, list):
                        for other in value:
                            stack.append((other, depth + 1))
                    else:
                        total += $value
                return total
            """,
        ],
        lambda: [nested(1)],
        [[[]], [[5]], [[[[]]]], [[1, [2]]], [[[1, 2], 3, [[4]]]], [[-1, [[-2], 0]]]],
        {"words": words, "value": value},
    )


@_family("competition")
def _fewest_coins(draw: Draw) -> Draft:
    most = draw.number(2, 5)
    return Draft(
        "fewest_coins smallest_payment minimal_coins pay_exactly",
        """`solve(coins, amount)` returns the smallest number of coins that add up to exactly `amount`, where `coins` lists the
        different values that coins can have and every value can be used at most $most times. <If it cannot be done, return -1.|It
        returns -1 where this is impossible.> <An amount of 0 needs no coins.|For 0, no coin is needed.>""",
        [
            """
            def solve(coins, amount):
                table = [0] + [amount + 1] * amount
                for coin in coins:
                    changed = list(table)
                    for i in range(amount + 1):
                        for count in range(1, $most + 1):
                            if count * coin <= i:
                                changed[i] = min(changed[i], table[i - count * coin] + count)
                    table = changed
                return table[amount] if table[amount] <= amount else -1
            """,
            """
            def solve(coins, amount):
                def helper(i, rest):
                    if rest == 0:
                        return 0
                    if i == len(coins) or rest < 0:
                        return None
                    best = None
                    for count in range($most + 1):
                        other = helper(i + 1, rest - count * coins[i])
                        if other is not None and (best is None or other + count < best):
                            best = other + count
                    return best
                result = helper(0, amount)
                return -1 if result is None else result
            """,
        ],
        lambda: [draw.distinct(draw.number(1, 4), 1, 9), draw.number(1, 28)],
        [[[], 0], [[], 3], [[1], most], [[1], most + 1], [[5, 2], 9], [[4, 3, 1], 6], [[7], 6], [[2, 4], 7]],
        {"most": most},
    )


@_family("competition")
def _payment_ways(draw: Draw) -> Draft:
    ordered = draw.coin()
    return Draft(
        "payment_ways count_payments ways_to_pay sum_ways",
        """`solve(coins, amount)` returns in how many ways `amount` can be paid exactly with coins whose different values `coins`
        lists; every value can be used any number of times. $rule <An amount of 0 can be paid in one way.|There is one way to pay 0:
        with no coins.>""",
        [
            """
            def solve(coins, amount):
                ways = [1] + [0] * amount
                for i in range(1, amount + 1):
                    for coin in coins:
                        if i >= coin:
                            ways[i] += ways[i - coin]
                return ways[amount]
            """
            if ordered
            else """
            def solve(coins, amount):
                ways = [1] + [0] * amount
                for coin in coins:
                    for i in range(coin, amount + 1):
                        ways[i] += ways[i - coin]
                return ways[amount]
            """,
            """
            def solve(coins, amount):
                def helper(rest):
                    if rest == 0:
                        return 1
                    total = 0
                    for coin in coins:
                        if coin <= rest:
                            total += helper(rest - coin)
                    return total
                return helper(amount)
            """
            if ordered
            else """
            def solve(coins, amount):
                def helper(i, rest):
                    if rest == 0:
                        return 1
                    if i == len(coins):
                        return 0
                    total = helper(i + 1, rest)
                    if coins[i] <= rest:
                        total += helper(i, rest - coins[i])
                    return total
                return helper(0, amount)
            """,
        ],
        lambda: [draw.distinct(draw.number(1, 3), 2, 7), draw.number(1, 18)],
        [[[], 0], [[], 2], [[3], 3], [[3], 4], [[1, 2], 4], [[2, 3], 5], [[5, 2, 3], 10]],
        {"rule": f"Ways that differ only in the order of coins are {'different' if ordered else 'the same'}."},
    )


@_family("competition")
def _common_subsequence(draw: Draw) -> Draft:
    what, gain = draw.pick(("length", "1"), ("value", "(2 if char in 'ab' else 1)"))
    rule = "" if gain == "1" else " Its value is the sum over its letters, where 'a' and 'b' count 2 and all others 1."
    return Draft(
        "common_letters shared_subsequence longest_shared common_order",
        """A subsequence of a text is what remains when some of its letters (none, or all of them, too) are taken out. `solve(text,
        pattern)` returns the largest $what of a subsequence that <both texts have|`text` and `pattern` share>.$rule <Without common
        letters it is 0.|If they share no letters, the answer is 0.>""",
        [
            """
            def solve(text, pattern):
                n = len(text)
                m = len(pattern)
                table = [[0] * (m + 1) for _ in range(n + 1)]
                for i in range(1, n + 1):
                    char = text[i - 1]
                    for j in range(1, m + 1):
                        if char == pattern[j - 1]:
                            table[i][j] = table[i - 1][j - 1] + $gain
                        else:
                            table[i][j] = max(table[i - 1][j], table[i][j - 1])
                return table[n][m]
            """,
            """
            def solve(text, pattern):
                previous = [0] * (len(pattern) + 1)
                for char in text:
                    current = [0]
                    for j, other in enumerate(pattern):
                        best = max(previous[j + 1], current[j])
                        if char == other:
                            best = max(best, previous[j] + $gain)
                        current.append(best)
                    previous = current
                return previous[-1]
            """,
        ],
        lambda: [draw.text(2, 9, "abcd"), draw.text(2, 9, "abcd")],
        [["", "a"], ["a", ""], ["a", "a"], ["abc", "cba"], ["abcabc", "acb"], ["aab", "azb"], ["dcba", "abcd"]],
        {"what": what, "gain": gain, "rule": rule},
    )


@_family("competition")
def _edit_cost(draw: Draw) -> Draft:
    put, cut, swap = draw.number(1, 3), draw.number(1, 3), draw.number(1, 4)
    return Draft(
        "edit_cost change_cost rewrite_price transform_cost",
        """<Turn|Change> `text` into `pattern` by these operations: insert a character (cost $put), delete a character (cost $cut),
        replace a character by another one (cost $swap). `solve(text, pattern)` returns the smallest total cost. <Equal texts cost
        nothing.|The cost is 0 for equal texts.>""",
        [
            """
            def solve(text, pattern):
                n = len(text)
                m = len(pattern)
                table = [[0] * (m + 1) for _ in range(n + 1)]
                for i in range(n + 1):
                    for j in range(m + 1):
                        if i == 0:
                            table[i][j] = j * $put
                        elif j == 0:
                            table[i][j] = i * $cut
                        else:
                            cost = 0 if text[i - 1] == pattern[j - 1] else $swap
                            table[i][j] = min(table[i - 1][j - 1] + cost, table[i - 1][j] + $cut, table[i][j - 1] + $put)
                return table[n][m]
            """,
            """
            def solve(text, pattern):
                previous = [j * $put for j in range(len(pattern) + 1)]
                for i, char in enumerate(text):
                    current = [(i + 1) * $cut]
                    for j, other in enumerate(pattern):
                        cost = previous[j]
                        if char != other:
                            cost += $swap
                        current.append(min(cost, previous[j + 1] + $cut, current[j] + $put))
                    previous = current
                return previous[-1]
            """,
        ],
        lambda: [draw.text(1, 7, "abc"), draw.text(1, 7, "abc")],
        [["", ""], ["", "ab"], ["ab", ""], ["abc", "abc"], ["a", "b"], ["abc", "bc"], ["bc", "abc"], ["aaaa", "bbbb"]],
        {"put": put, "cut": cut, "swap": swap},
    )


@_family("competition")
def _best_load(draw: Draw) -> Draft:
    often = draw.coin()
    return Draft(
        "best_load pack_bag fill_bag most_profit",
        """<Article i has the weight `weights[i]` and the worth `gains[i]`.|The weights and the worths of articles are in the lists
        `weights` and `gains`.> A bag carries a total weight of at most `amount`, and every article can be packed $often.
        `solve(weights, gains, amount)` returns the largest total worth that the bag can carry. <All weights are at least 1.|No
        weight is below 1.>""",
        [
            """
            def solve(weights, gains, amount):
                table = [0] * (amount + 1)
                for i in range(len(weights)):
                    for rest in $loop:
                        table[rest] = max(table[rest], table[rest - weights[i]] + gains[i])
                return table[amount]
            """,
            """
            def solve(weights, gains, amount):
                def helper(i, rest):
                    if i == len(weights):
                        return 0
                    best = helper(i + 1, rest)
                    if weights[i] <= rest:
                        best = max(best, gains[i] + helper(i$next, rest - weights[i]))
                    return best
                return helper(0, amount)
            """,
        ],
        lambda: (lambda n: [[draw.number(1, 7) for _ in range(n)], [draw.number(0, 12) for _ in range(n)], draw.number(1, 14)])(
            draw.number(2, 5)
        ),
        [
            [[], [], 5],
            [[3], [4], 2],
            [[3], [4], 3],
            [[3], [4], 6],
            [[2, 2, 3], [3, 3, 5], 4],
            [[1, 5], [1, 9], 5],
            [[4, 3, 2], [5, 4, 3], 0],
        ],
        {
            "often": "any number of times" if often else "only once",
            "loop": "range(weights[i], amount + 1)" if often else "range(amount, weights[i] - 1, -1)",
            "next": "" if often else " + 1",
        },
    )


@_family("competition")
def _spaced_choice(draw: Draw) -> Draft:
    k = draw.number(1, 3)
    word = "place" if k == 1 else "places"
    return Draft(
        "spaced_choice best_spaced choose_apart spaced_sum",
        """Choose some of the places of the list `values`, or none, so that two chosen places always have at least $k <other|further>
        $word between them. `solve(values)` returns the largest possible sum of the numbers at the chosen places. <Numbers may be
        negative; the sum of no numbers is 0.|Some numbers may be negative. Choosing none gives 0.>""",
        [
            """
            def solve(values):
                table = [0]
                for i, value in enumerate(values):
                    before = table[max(i - $k, 0)]
                    table.append(max(table[i], before + value))
                return table[-1]
            """,
            """
            def solve(values):
                def helper(i):
                    if i >= len(values):
                        return 0
                    return max(helper(i + 1), values[i] + helper(i + $k + 1))
                return helper(0)
            """,
        ],
        lambda: [draw.numbers(3, 10, -3, 12)],
        [[[]], [[5]], [[-5]], [[1, 2]], [[9, 1, 1, 9]], [[4, 5, 4]], [[2, 7, 9, 3, 1]], [[8, 1, 1, 8, 1, 1, 1, 8]]],
        {"k": k, "word": word},
    )


@_family("competition")
def _longest_rising(draw: Draw) -> Draft:
    words, op = draw.pick(("larger than", ">"), ("at least as large as", ">="), ("smaller than", "<"), ("at most as large as", "<="))
    gap = draw.pick("", " and differs from it by at most 3")
    return Draft(
        "longest_rising longest_chain best_selection ordered_choice",
        """Leave out some numbers of `values`, or none, so that each number that remains is $words the one that remains before it$gap.
        `solve(values)` returns <how many numbers can remain at most|the largest count of numbers that can remain>; the order is not
        changed. For an empty list it is 0.""",
        [
            """
            def solve(values):
                table = []
                for i in range(len(values)):
                    best = 1
                    for j in range(i):
                        if values[i] $op values[j]$test:
                            best = max(best, table[j] + 1)
                    table.append(best)
                return max(table, default=0)
            """,
            """
            def solve(values):
                def helper(i):
                    best = 0
                    for j in range(i + 1, len(values)):
                        if i < 0 or (values[j] $op values[i]$test2):
                            best = max(best, 1 + helper(j))
                    return best
                return helper(-1)
            """,
        ],
        lambda: [draw.numbers(3, 9, 0, 9)],
        [[[]], [[4]], [[1, 2, 3]], [[3, 2, 1]], [[2, 2, 2]], [[1, 9, 2, 5, 3]], [[0, 3, 6, 9]], [[9, 5, 1, 4, 0]]],
        {
            "words": words,
            "op": op,
            "gap": gap,
            "test": " and abs(values[i] - values[j]) <= 3" if gap else "",
            "test2": " and abs(values[j] - values[i]) <= 3" if gap else "",
        },
    )


@_family("competition")
def _fair_split(draw: Draw) -> Draft:
    what = draw.coin()
    return Draft(
        "fair_split split_difference even_halves divide_fairly",
        """The numbers in `values`, none of them negative, are divided between two people; <one of them may get nothing|somebody may
        get none>. `solve(values)` returns $what. <For an empty list both have 0.|With no numbers, both sums are 0.>""",
        [
            """
            def solve(values):
                seen = {0}
                for value in values:
                    seen = seen | {current + value for current in seen}
                total = sum(values)
                best = min(abs(total - 2 * current) for current in seen)
                return $tail
            """,
            """
            def solve(values):
                total = sum(values)
                table = [True] + [False] * total
                for value in values:
                    for i in range(total, value - 1, -1):
                        if table[i - value]:
                            table[i] = True
                half = max(i for i in range(total // 2 + 1) if table[i])
                best = total - 2 * half
                return $tail
            """,
        ],
        lambda: [draw.numbers(2, 6, 0, 12)],
        [[[]], [[0]], [[5]], [[3, 3]], [[1, 2, 3]], [[1, 2, 4]], [[8, 7, 6, 5, 4]], [[10, 1, 1, 1]]],
        {
            "what": "the smallest possible difference of the two sums"
            if what
            else "the larger of the two sums when they are as close as possible",
            "tail": "best" if what else "(total + best) // 2",
        },
    )
