"""Families about texts that have a structure."""

from nip_ray.scenarios.code_validation.families.base import Draft, Draw, Family, collect

FAMILIES: list[Family] = []
_family = collect(FAMILIES)


@_family("introductory")
def _duration(draw: Draw) -> Draft:
    big, middle, small = draw.pick(("h", "m", "s"), ("H", "M", "S"), ("a", "b", "c"))
    many, few = draw.pick((60, 60), (20, 30), (10, 100))
    return Draft(
        "duration to_seconds parse_time read_duration",
        """A duration is written as numbers, each followed by a unit: '$small' is the smallest unit, $few of them make one '$middle',
        and $many of '$middle' make one '$big'. Units may <stand in any order|come in any order>, be missing or be repeated, as in
        '2$big' or '5${small}1$middle'. `solve(text)` returns the duration in units of '$small'. <The empty text is 0.|For an empty
        text it is 0.>""",
        [
            """
            def solve(text):
                total = 0
                value = 0
                for char in text:
                    if char.isdigit():
                        value = value * 10 + int(char)
                    else:
                        if char == '$big':
                            total += value * $product
                        elif char == '$middle':
                            total += value * $few
                        else:
                            total += value
                        value = 0
                return total
            """,
            """
            def solve(text):
                weights = {'$big': $product, '$middle': $few, '$small': 1}
                total = 0
                digits = ''
                for char in text:
                    if char in weights:
                        total += int(digits) * weights[char]
                        digits = ''
                    else:
                        digits += char
                return total
            """,
        ],
        lambda: ["".join(f"{draw.number(0, 70)}{draw.pick(big, middle, small)}" for _ in range(draw.number(1, 3)))],
        [[""], ["1" + big], ["1" + middle], ["1" + small], [f"1{big}1{middle}1{small}"], [f"10{small}2{middle}"], [f"0{big}"]],
        {"big": big, "middle": middle, "small": small, "many": many, "few": few, "product": many * few},
    )


@_family("interview")
def _brackets(draw: Draw) -> Draft:
    pairs = draw.rng.sample(["()", "[]", "{}", "<>"], draw.number(2, 3))
    what = draw.coin()
    opened, closed = "".join(pair[0] for pair in pairs), "".join(pair[1] for pair in pairs)
    table = "{" + ", ".join(f"{pair[1]!r}: {pair[0]!r}" for pair in pairs) + "}"

    def sample() -> list[str]:
        text = ""
        for _ in range(draw.number(1, 4)):
            pair, at = draw.pick(*pairs), draw.number(0, len(text))
            text = text[:at] + pair[0] + draw.pick("", "", "a", pair) + pair[1] + text[at:]
        at = draw.number(0, len(text) - 1)
        return [draw.pick(text, text, text[:at] + text[at + 1 :], text[:at] + draw.pick(*(opened + closed)) + text[at + 1 :])]

    first, second = pairs[:2]
    return Draft(
        "check_brackets bracket_depth well_formed bracket_check",
        """The brackets '$shown' in `text` are in order when each is closed by one of its kind, and <pairs of brackets do not
        cross|what is opened last is closed first>; other characters do not matter. $what <A text without brackets is in
        order.|Without any brackets, the text is in order.>""",
        [
            """
            def solve(text):
                stack = []
                depth = 0
                for char in text:
                    if char in '$opened':
                        stack.append(char)
                        depth = max(depth, len(stack))
                    elif char in '$closed':
                        if not stack or stack.pop() != $table[char]:
                            return $no
                return depth if not stack else $no
            """
            if what
            else """
            def solve(text):
                stack = []
                for char in text:
                    if char in '$opened':
                        stack.append(char)
                    elif char in '$closed':
                        if not stack or stack.pop() != $table[char]:
                            return False
                return not stack
            """,
            """
            def solve(text):
                table = $table
                stack = ''
                best = 0
                for char in text:
                    if char in table.values():
                        stack += char
                    if char in table:
                        if stack[-1:] != table[char]:
                            return $no
                        stack = stack[:-1]
                    best = max(best, len(stack))
                return $tail
            """,
        ],
        sample,
        [
            [""],
            ["ab"],
            [first],
            [first[0]],
            [first[1]],
            [first[0] + second[0] + first[1] + second[1]],
            [first[0] + second + first[1]],
            [first[::-1]],
            [first[0] * 2 + first[1]],
        ],
        {
            "shown": "', '".join(pairs),
            "opened": opened,
            "closed": closed,
            "table": table,
            "no": "-1" if what else "False",
            "what": "`solve(text)` returns how many brackets are open at once at most, or `-1` if they are not in order."
            if what
            else "`solve(text)` returns whether they are in order.",
            "tail": "-1 if stack else best" if what else "stack == ''",
        },
    )


@_family("interview")
def _small_sums(draw: Draw) -> Draft:
    times = draw.pick("*", "x")
    both = draw.coin()
    signs = "+-" if both else "+"

    def sample() -> list[str]:
        text = str(draw.number(0, 12))
        for _ in range(draw.number(1, 5)):
            text += draw.pick(*signs, times) + str(draw.number(0, 12))
        return [text]

    return Draft(
        "evaluate calculate compute_line small_sum",
        """`text` is a calculation with whole numbers that are not negative, without blanks, like $sample. `solve(text)` returns its
        result. Here '$times' <stands for|means> multiplication, which <goes first|binds more strongly> as usual; $what <A single
        number is a calculation, too.|There may be no operation at all.>""",
        [
            """
            def solve(text):
                total = 0
                sign = 1
                value = 1
                digits = ''
                for char in text + '+':
                    if char.isdigit():
                        digits += char
                        continue
                    value *= int(digits)
                    digits = ''
                    if char != '$times':
                        total += sign * value
                        value = 1
                        sign = $sign
                return total
            """,
            """
            def solve(text):
                total = 0
                for part in text.replace('-', '+-').split('+'):
                    value = 1
                    sign = 1
                    if part.startswith('-'):
                        sign = -1
                        part = part[1:]
                    for other in part.split('$times'):
                        value *= int(other)
                    total += sign * value
                return total
            """
            if both
            else """
            def solve(text):
                total = 0
                for part in text.split('+'):
                    value = 1
                    for other in part.split('$times'):
                        value *= int(other)
                    total += value
                return total
            """,
        ],
        sample,
        [
            ["0"],
            ["42"],
            ["1+2"],
            [f"2{times}3"],
            [f"2+3{times}4"],
            [f"2{times}3+4"],
            [f"2{times}3{times}4"],
            ["10" + signs[-1] + "3" + signs[-1] + "2"],
        ],
        {
            "times": times,
            "sample": f"12+3{times}4" + ("-5" if both else "+5"),
            "what": "'+' and '-' are applied from left to right." if both else "'+' is the only other operation.",
            "sign": "-1 if char == '-' else 1" if both else "1",
        },
    )


@_family("interview")
def _stack_machine(draw: Draw) -> Draft:
    swap, double = draw.pick("swap", "flip"), draw.pick("dup", "copy")
    minus = draw.coin()
    word, fold = ("minus", "left - right") if minus else ("plus", "left + right")

    def sample() -> list[str]:
        words, height = [str(draw.number(1, 9))], 1
        for _ in range(draw.number(2, 7)):
            options = [str(draw.number(1, 9)), double] + ([word, "times", swap] * 2 if height > 1 else [])
            words.append(draw.rng.choice(options))
            height += {word: -1, "times": -1, swap: 0}.get(words[-1], 1)
        return [" ".join(words)]

    return Draft(
        "run_machine stack_result run_program execute",
        """A machine has a stack of numbers, empty at first, and carries out the words of `text` one by one. A number is put on the
        stack; '$double' puts the topmost number on it once more; '$swap' exchanges the two topmost numbers; '$word' and 'times'
        take the two topmost numbers, b at the top and a below, and put $result or a * b in their place. `solve(text)` returns the
        stack at the end as a list, <with the top last|the topmost number at its end>. No word ever lacks numbers.""",
        [
            """
            def solve(text):
                stack = []
                for word in text.split():
                    if word == '$double':
                        stack.append(stack[-1])
                    elif word == '$swap':
                        stack[-1], stack[-2] = (stack[-2], stack[-1])
                    elif word == '$word':
                        right = stack.pop()
                        left = stack.pop()
                        stack.append($fold)
                    elif word == 'times':
                        stack.append(stack.pop() * stack.pop())
                    else:
                        stack.append(int(word))
                return stack
            """,
            """
            def solve(text):
                stack = []
                for word in text.split():
                    if word in ('$word', 'times', '$swap'):
                        left, right = stack[-2:]
                        stack = stack[:-2]
                        if word == '$swap':
                            stack += [right, left]
                        else:
                            stack.append($fold if word == '$word' else left * right)
                    elif word == '$double':
                        stack += stack[-1:]
                    else:
                        stack += [int(word)]
                return stack
            """,
        ],
        sample,
        [
            [""],
            ["5"],
            [f"5 {double}"],
            [f"1 2 {swap}"],
            [f"7 3 {word}"],
            ["4 3 times"],
            [f"1 2 3 {swap} {word}"],
            [f"2 {double} times {double} 3 {swap} {word}"],
        ],
        {"swap": swap, "double": double, "word": word, "fold": fold, "result": "a - b" if minus else "a + b"},
    )


@_family("interview")
def _letter_numerals(draw: Draw) -> Draft:
    letters = draw.pick("IVXLC", "abcde", "PQRST")
    weights = (1, 5, 10, 50, 100)
    table = "{" + ", ".join(f"{char!r}: {weight}" for char, weight in zip(letters, weights)) + "}"
    parts = [
        (letters[4], 100),
        (letters[2] + letters[4], 90),
        (letters[3], 50),
        (letters[2] + letters[3], 40),
        (letters[2], 10),
        (letters[0] + letters[2], 9),
        (letters[1], 5),
        (letters[0] + letters[1], 4),
        (letters[0], 1),
    ]

    def numeral(n: int) -> str:
        text = ""
        for part, weight in parts:
            text += part * (n // weight)
            n %= weight
        return text

    a, b, c, d, e = letters
    return Draft(
        "read_numeral numeral_value from_numerals decode_numeral",
        """In the numerals of an old people $a is 1, $b is 5, $c is 10, $d is 50 and $e is 100. The values of the letters are added,
        <except that|but> a letter that stands directly before one of larger value is subtracted. `solve(text)` returns the number
        that the numeral `text` means. <An empty numeral means 0.|The empty text means 0.>""",
        [
            """
            def solve(text):
                table = $table
                total = 0
                for i in range(len(text)):
                    value = table[text[i]]
                    if i + 1 < len(text) and value < table[text[i + 1]]:
                        total -= value
                    else:
                        total += value
                return total
            """,
            """
            def solve(text):
                table = $table
                total = 0
                previous = 0
                for char in reversed(text):
                    value = table[char]
                    total += value if value >= previous else -value
                    previous = value
                return total
            """,
        ],
        lambda: [numeral(draw.number(1, 399))],
        [[""], [a], [a + a], [a + b], [b + a], [c + d + a + c], [e * 3 + c + e + a + c], [a + c + b]],
        {"a": a, "b": b, "c": c, "d": d, "e": e, "table": table},
    )


@_family("interview")
def _compare_versions(draw: Draw) -> Draft:
    mark, later, earlier = draw.pick(".", "-", ":"), *draw.pick(("newer", "older"), ("later", "earlier"), ("after", "before"))
    return Draft(
        "compare_versions version_order which_newer rank_versions",
        """<Version numbers|Versions> are texts like '1${mark}12${mark}3': numbers with '$mark' between them, compared part by part
        from the left as numbers. A missing part counts as 0, so that '2' and '2${mark}0' are equal. `solve(first, second)` returns
        '$later' if `first` is the larger version, '$earlier' if it is the smaller one, and 'same' <otherwise|if they are equal>.""",
        [
            """
            def solve(first, second):
                left = [int(part) for part in first.split('$mark')]
                right = [int(part) for part in second.split('$mark')]
                n = max(len(left), len(right))
                left += [0] * (n - len(left))
                right += [0] * (n - len(right))
                if left == right:
                    return 'same'
                return '$later' if left > right else '$earlier'
            """,
            """
            def solve(first, second):
                left = first.split('$mark')
                right = second.split('$mark')
                i = 0
                while i < len(left) or i < len(right):
                    value = int(left[i]) if i < len(left) else 0
                    other = int(right[i]) if i < len(right) else 0
                    if value > other:
                        return '$later'
                    if value < other:
                        return '$earlier'
                    i += 1
                return 'same'
            """,
        ],
        lambda: [mark.join(str(draw.pick(0, 0, 1, 2, 10)) for _ in range(draw.number(1, 3))) for _ in range(2)],
        [
            ["1", "1"],
            ["2", f"2{mark}0"],
            [f"2{mark}0", "2"],
            [f"1{mark}10", f"1{mark}9"],
            ["1", f"1{mark}1"],
            [f"1{mark}1", "1"],
            [f"0{mark}9", "1"],
            [f"3{mark}02", f"3{mark}2"],
        ],
        {"mark": mark, "later": later, "earlier": earlier},
    )
