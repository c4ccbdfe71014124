"""Families about whole numbers."""

from nip_ray.scenarios.code_validation.families.base import Draft, Draw, Family, collect

FAMILIES: list[Family] = []
_family = collect(FAMILIES)


@_family("introductory")
def _sum_of_multiples(draw: Draw) -> Draft:
    a, b = sorted(draw.distinct(2, 2, 9))
    both, below = draw.pick("or", "and"), draw.coin()
    return Draft(
        "sum_of_multiples add_multiples multiples_total divisible_sum",
        """<Write|Implement> `solve(n)` that <adds up|returns the sum of> all whole numbers from 1 $range that are <divisible
        by|multiples of> $a $both <divisible by|multiples of> $b. <Each number counts once.|No number is added twice.> <`n` is at
        least 0.|`n` is not negative.>""",
        [
            """
            def solve(n):
                total = 0
                for value in range(1, n$end):
                    if value % $a == 0 $both value % $b == 0:
                        total += value
                return total
            """,
            """
            def solve(n):
                return sum(value for value in range(1, n$end) if value % $a == 0 $both value % $b == 0)
            """,
        ],
        lambda: [draw.number(1, 150)],
        [[0], [1], [a], [b], [a * b], [a * b + 1], [2 * a * b]],
        {"a": a, "b": b, "both": both, "range": "up to but not including `n`" if below else "to `n`", "end": "" if below else " + 1"},
    )


@_family("introductory")
def _digit_total(draw: Draw) -> Draft:
    words, test = draw.pick(
        ("even", "digit % 2 == 0"), ("odd", "digit % 2 == 1"), ("greater than 4", "digit > 4"), ("smaller than 7", "digit < 7")
    )
    power, k = draw.pick(("the digits", 1), ("the squares of the digits", 2), ("the cubes of the digits", 3))
    return Draft(
        "digit_total add_digits digit_sum score_digits",
        """<Let `n` be a whole number that is not negative.|The number `n` is at least 0.> `solve(n)` <returns|computes> the sum of
        $power of `n` that are $words. <Without such digits it is 0.|If there are none, return 0.>""",
        [
            """
            def solve(n):
                total = 0
                while n > 0:
                    digit = n % 10
                    if $test:
                        total += $power_of
                    n //= 10
                return total
            """,
            """
            def solve(n):
                total = 0
                for char in str(n):
                    digit = int(char)
                    if $test:
                        total += $power_of
                return total
            """,
        ],
        lambda: [draw.number(10, 10 ** draw.number(2, 7))],
        [[0], [4], [7], [5], [10], [1234567890], [999], [2468]],
        {"words": words, "test": test, "power": power, "power_of": "digit" if k == 1 else f"digit ** {k}"},
    )


@_family("introductory")
def _steps_to_one(draw: Draw) -> Draft:
    m, d = draw.pick((3, 1), (5, 1), (1, 1), (7, 1), (3, 3))
    return Draft(
        "steps_to_end count_steps chain_length journey_length",
        """<Start with|Begin at> a number `n` of at least 1 <and repeat|and do this again and again>: an even number is halved, an odd
        number x is replaced by $m * x + $d. `solve(n, limit)` returns <after how many steps|the number of steps after which> the
        value is $goal <for the first time|first>, or `-1` if that takes more than `limit` steps. If `n` is $goal, the answer is 0.""",
        [
            """
            def solve(n, limit):
                steps = 0
                while n != $goal:
                    if steps == limit:
                        return -1
                    if n % 2 == 0:
                        n //= 2
                    else:
                        n = $m * n + $d
                    steps += 1
                return steps
            """,
            """
            def solve(n, limit):
                for step in range(limit + 1):
                    if n == $goal:
                        return step
                    n = n // 2 if n % 2 == 0 else $m * n + $d
                return -1
            """,
        ],
        lambda: [draw.number(1, 40), draw.number(0, 25)],
        [[1, 0], [2, 0], [2, 1], [4, 1], [8, 3], [8, 2], [6, 30], [3, 40]],
        {"m": m, "d": d, "goal": 3 if d == 3 else 1},
    )


@_family("introductory")
def _divisors(draw: Draw) -> Draft:
    (what, add), proper = draw.pick(("number", "1"), ("sum", "value")), draw.coin()
    kind, test = draw.pick(("", ""), ("odd ", " and value % 2 == 1"), ("even ", " and value % 2 == 0"))
    return Draft(
        "divisor_figure divisors_of measure_divisors divisor_total",
        """`solve(n)` <returns|calculates> the $what of the $kind<divisors|positive divisors> of `n` $which. <`n` is at least 1.|Only
        numbers from 1 on are given.>""",
        [
            """
            def solve(n):
                total = 0
                for value in range(1, n$end):
                    if n % value == 0$test:
                        total += $add
                return total
            """,
            """
            def solve(n):
                seen = set()
                value = 1
                while value * value <= n:
                    if n % value == 0:
                        seen.add(value)
                        seen.add(n // value)
                    value += 1
                return sum($add for value in seen if value $op n$test)
            """,
        ],
        lambda: [draw.number(2, 120)],
        [[1], [2], [3], [4], [36], [97], [96], [100]],
        {
            "what": what,
            "kind": kind,
            "which": "without `n` itself" if proper else "including 1 and, if it counts, `n` itself",
            "end": "" if proper else " + 1",
            "op": "<" if proper else "<=",
            "add": add,
            "test": test,
        },
    )


@_family("introductory")
def _number_labels(draw: Draw) -> Draft:
    a, b = draw.distinct(2, 2, 7)
    first, second = draw.pick(("ping", "pong"), ("red", "blue"), ("tick", "tock"), ("hip", "hop"))
    return Draft(
        "number_labels call_out name_numbers counting_game",
        """<In a counting game|Children count, and> numbers divisible by $a are called '$first', those divisible by $b '$second', and
        those divisible by both '$first$second'; other numbers are called by their <digits|decimal digits>. `solve(start, end)`
        returns the list of calls from `start` to `end`, both included. <If `end` is smaller than `start` it is empty.|It is empty
        when `start` is larger than `end`.>""",
        [
            """
            def solve(start, end):
                result = []
                for value in range(start, end + 1):
                    word = ''
                    if value % $a == 0:
                        word += '$first'
                    if value % $b == 0:
                        word += '$second'
                    result.append(word or str(value))
                return result
            """,
            """
            def solve(start, end):
                result = []
                for value in range(start, end + 1):
                    if value % $a == 0 and value % $b == 0:
                        result.append('$first$second')
                    elif value % $a == 0:
                        result.append('$first')
                    elif value % $b == 0:
                        result.append('$second')
                    else:
                        result.append(str(value))
                return result
            """,
        ],
        lambda: (lambda low: [low, low + draw.number(0, 6)])(draw.number(1, 60)),
        [[1, 0], [1, 1], [a, a], [b, b], [a * b, a * b], [1, 15], [a * b - 1, a * b + 1]],
        {"a": a, "b": b, "first": first, "second": second},
    )


@_family("introductory")
def _long_years(draw: Draw) -> Draft:
    a = draw.number(3, 6)
    b = a * draw.number(4, 10)
    c = b * draw.number(3, 5)
    return Draft(
        "is_long_year long_year has_extra_day leap_rule",
        """<On a distant planet|In an invented calendar> a year has an extra day if its number is divisible by $a, <but not if|except
        when> it is divisible by $b, unless it is divisible by $c <as well|too>. `solve(n)` <tells whether|returns `True` if> year
        `n` has the extra day<, else `False`|>.""",
        [
            """
            def solve(n):
                if n % $c == 0:
                    return True
                if n % $b == 0:
                    return False
                return n % $a == 0
            """,
            """
            def solve(n):
                return n % $a == 0 and (n % $b != 0 or n % $c == 0)
            """,
        ],
        lambda: [draw.pick(draw.number(1, 400), a * draw.number(1, 60), b * draw.number(1, 12))],
        [[1], [a], [b], [c], [2 * c], [c + b], [b + a], [c + a], [c + 1]],
        {"a": a, "b": b, "c": c},
    )


@_family("introductory")
def _divisor_kind(draw: Draw) -> Draft:
    poor, even, rich = draw.pick(("poor", "balanced", "rich"), ("small", "perfect", "great"), ("low", "level", "high"))
    return Draft(
        "divisor_kind classify_number number_class weigh_number",
        """<Add up all divisors of a number `n` but `n` itself.|Let s be the sum of the divisors of `n` that are smaller than `n`.>
        `solve(n)` returns '$poor' if <this sum|the sum> is smaller than `n`, '$even' if it equals `n`, and '$rich' if it is larger.
        <`n` is at least 1.|No number below 1 is given.>""",
        [
            """
            def solve(n):
                total = 0
                for value in range(1, n // 2 + 1):
                    if n % value == 0:
                        total += value
                if total < n:
                    return '$poor'
                if total == n:
                    return '$even'
                return '$rich'
            """,
            """
            def solve(n):
                total = sum(value for value in range(1, n) if n % value == 0)
                if total > n:
                    return '$rich'
                return '$even' if total == n else '$poor'
            """,
        ],
        lambda: [draw.pick(draw.number(2, 60), 6 * draw.number(2, 20))],
        [[1], [2], [6], [12], [18], [28], [496], [9], [20]],
        {"poor": poor, "even": even, "rich": rich},
    )


@_family("introductory")
def _shared_measure(draw: Draw) -> Draft:
    common = draw.coin()
    return Draft(
        "shared_measure combined_step list_measure fold_numbers",
        """`solve(values)` <gets|is given> a non-empty list of whole numbers from 1 on and returns $what. <It is not necessary that
        they differ.|Numbers may be repeated.>""",
        [
            """
            def solve(values):
                result = values[0]
                for value in values[1:]:
                    first = result
                    second = value
                    while second > 0:
                        first, second = (second, first % second)
                    result = $fold
                return result
            """,
            """
            def solve(values):
                result = $start
                while any($test for value in values):
                    result $move
                return result
            """,
        ],
        lambda: [(lambda unit: [unit * draw.number(1, 5) for _ in range(draw.number(1, 4))])(draw.number(1, 6))],
        [[[1]], [[7]], [[4, 6]], [[6, 4]], [[3, 5]], [[8, 4, 2]], [[6, 10, 15]], [[12, 18, 30]]],
        {
            "what": "the largest number that divides all of them" if common else "the smallest number from 1 on that all of them divide",
            "fold": "first" if common else "result * value // first",
            "start": "min(values)" if common else "max(values)",
            "test": "value % result != 0" if common else "result % value != 0",
            "move": "-= 1" if common else "+= max(values)",
        },
    )


@_family("introductory")
def _shrink_number(draw: Draw) -> Draft:
    word, fold, first = draw.pick(("product", "*", 1), ("sum", "+", 0))
    return Draft(
        "shrink_number rounds_to_digit digit_rounds persistence",
        """<Replace a number by the $word of its digits, and do so again until one digit is left.|A number is replaced by the $word of
        its decimal digits until it has a single digit.> `solve(n)` returns a list of two numbers: how many <replacements|rounds>
        this takes, and the last digit. `n` is not negative; <a single digit takes 0 rounds|with one digit, no round is needed>.""",
        [
            """
            def solve(n):
                steps = 0
                while n > 9:
                    value = $first
                    for char in str(n):
                        value = value $fold int(char)
                    n = value
                    steps += 1
                return [steps, n]
            """,
            """
            def solve(n):
                steps = 0
                while n >= 10:
                    value = $first
                    while n > 0:
                        value $fold= n % 10
                        n //= 10
                    n = value
                    steps += 1
                return [steps, n]
            """,
        ],
        lambda: [draw.number(10, 10 ** draw.number(2, 7))],
        [[0], [9], [10], [19], [77], [99], [679], [6788], [55555]],
        {"word": word, "fold": fold, "first": first},
    )


@_family("interview")
def _primes_in_range(draw: Draw) -> Draft:
    what, tail = draw.pick(
        ("how many prime numbers there are", "len(result)"),
        ("the sum of all prime numbers", "sum(result)"),
        ("a list of all prime numbers", "result"),
    )
    digit = draw.pick(1, 3, 7, 9, 0)
    ending = f" and end in the digit {digit}" if digit else ""
    return Draft(
        "primes_in_range primes_between prime_survey find_primes",
        """`solve(low, high)` returns $what that are at least `low` and at most `high`$ending. <Negative numbers, 0 and 1 are not
        prime.|A prime number is larger than 1 and divisible only by 1 and itself.>""",
        [
            """
            def solve(low, high):
                result = []
                for value in range(max(low, 2), high + 1):
                    flag = True
                    i = 2
                    while i * i <= value:
                        if value % i == 0:
                            flag = False
                            break
                        i += 1
                    if flag$test:
                        result.append(value)
                return $tail
            """,
            """
            def solve(low, high):
                if high < 2:
                    result = []
                    return $tail
                seen = [True] * (high + 1)
                for i in range(2, high + 1):
                    if seen[i]:
                        for j in range(i * i, high + 1, i):
                            seen[j] = False
                result = [value for value in range(max(low, 2), high + 1) if seen[value]$test]
                return $tail
            """,
        ],
        lambda: (lambda low: [low, low + draw.number(0, 60)])(draw.number(0, 120)),
        [[0, 1], [0, 2], [2, 3], [3, 3], [4, 4], [9, 9], [20, 10], [-5, 30], [110, 140], [25, 49]],
        {"what": what, "tail": tail, "ending": ending, "test": f" and value % 10 == {digit}" if digit else ""},
    )


@_family("interview")
def _in_base(draw: Draw) -> Draft:
    digits = draw.pick("0123456789abcdef", "0123456789ABCDEF", "zyxwvutsrq")
    most = len(digits)
    return Draft(
        "in_base to_base write_number number_text",
        """`solve(n, base)` writes the whole number `n` in <base|the number system with base> `base`, which is from 2 to $most, with
        the digits '$digits' (the first of them stands for zero). A negative number has a '-' in front; zero is the single digit
        '$zero'. <Return a string.|The result is a text.>""",
        [
            """
            def solve(n, base):
                if n == 0:
                    return '$zero'
                sign = '-' if n < 0 else ''
                n = abs(n)
                result = ''
                while n > 0:
                    result = '$digits'[n % base] + result
                    n //= base
                return sign + result
            """,
            """
            def solve(n, base):
                if n < 0:
                    return '-' + solve(-n, base)
                if n < base:
                    return '$digits'[n]
                return solve(n // base, base) + '$digits'[n % base]
            """,
        ],
        lambda: [draw.number(-300, 2000), draw.number(2, most)],
        [[0, 2], [1, 2], [-1, 3], [8, 2], [most - 1, most], [most, most], [-10, 10], [99, 10]],
        {"digits": digits, "most": most, "zero": digits[0]},
    )


@_family("interview")
def _power_remainder(draw: Draw) -> Draft:
    a = draw.number(1, 9)
    return Draft(
        "power_remainder last_of_power remainder_of modular_power",
        """<Compute|Find> the remainder of `value` to the power of `exponent`, plus $a, when divided by `base`. `solve(value, exponent,
        base)` <must be fast|should be quick> for large exponents; none of the three is negative, and `base` is at least 1. <As
        usual, x to the power of 0 is 1.|Any number to the power of 0 is 1, even 0.>""",
        [
            """
            def solve(value, exponent, base):
                result = 1 % base
                value = value % base
                while exponent > 0:
                    if exponent % 2 == 1:
                        result = result * value % base
                    value = value * value % base
                    exponent //= 2
                return (result + $a) % base
            """,
            """
            def solve(value, exponent, base):
                def helper(e):
                    if e == 0:
                        return 1 % base
                    half = helper(e // 2)
                    half = half * half % base
                    if e % 2 == 1:
                        half = half * value % base
                    return half
                return (helper(exponent) + $a) % base
            """,
        ],
        lambda: [draw.number(0, 30), draw.number(0, 200), draw.number(1, 40)],
        [[0, 0, 5], [0, 3, 7], [5, 0, 1], [2, 10, 1000], [7, 1, 5], [3, 200, 50], [10, 9, 7]],
        {"a": a},
    )


@_family("interview")
def _cycle_length(draw: Draw) -> Draft:
    a, c = draw.number(2, 4), draw.number(1, 9)
    return Draft(
        "cycle_length loop_size period_of repeat_length",
        """<Consider the rule|A sequence follows the rule> x -> ($a * x * x + $c) % `base`, <starting with|beginning at> `start`, which
        is at least 0 and smaller than `base`. Sooner or later the values repeat. `solve(start, base)` returns a list of two
        numbers: <how many values come before the cycle|the number of values before the repeating part>, and <how many different
        values the cycle has|the length of the cycle>.""",
        [
            """
            def solve(start, base):
                seen = {}
                current = start
                i = 0
                while current not in seen:
                    seen[current] = i
                    current = ($a * current * current + $c) % base
                    i += 1
                return [seen[current], i - seen[current]]
            """,
            """
            def solve(start, base):
                values = [start]
                while True:
                    value = ($a * values[-1] ** 2 + $c) % base
                    if value in values:
                        i = values.index(value)
                        return [i, len(values) - i]
                    values.append(value)
            """,
        ],
        lambda: (lambda base: [draw.number(0, base - 1), base])(draw.number(3, 90)),
        [[0, 1], [0, 2], [1, 2], [2, 5], [3, 97], [10, 64]],
        {"a": a, "c": c},
    )
