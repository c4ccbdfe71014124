"""Families about text, letter by letter."""

from nip_ray.scenarios.code_validation.families.base import Draft, Draw, Family, collect

FAMILIES: list[Family] = []
_family = collect(FAMILIES)


@_family("introductory")
def _count_letters(draw: Draw) -> Draft:
    words, chosen = draw.pick(
        ("vowels (a, e, i, o, u)", "aeiou"),
        ("letters from a to f", "abcdef"),
        ("letters of the word 'stone'", "stone"),
        ("digits", "0123456789"),
    )
    return Draft(
        "count_marked how_many_letters count_special letter_count tally_letters",
        """<Write|Implement|Define> a function `solve(text)` that <counts|returns> how often $words <occur|appear> in `text`. <Upper
        and lower case count alike.|Case does not matter.>""",
        [
            """
            def solve(text):
                count = 0
                for char in text.lower():
                    if char in '$chosen':
                        count += 1
                return count
            """,
            """
            def solve(text):
                return sum(1 for char in text if char.lower() in '$chosen')
            """,
            """
            def solve(text):
                text = text.lower()
                total = 0
                for i in range(len(text)):
                    if text[i] in '$chosen':
                        total = total + 1
                return total
            """,
        ],
        lambda: [draw.text(3, 14, "aeioubcdstXAEN0189 ")],
        [[""], [chosen], [chosen[0].upper() + "zz" + chosen[-1]], ["xyzzy"]],
        {"words": words, "chosen": chosen},
    )


@_family("introductory")
def _is_mirrored(draw: Draw) -> Draft:
    words, method, alphabet = draw.pick(
        ("letters", "isalpha", "abAB1"), ("letters and digits", "isalnum", "abAB12"), ("digits", "isdigit", "123a")
    )

    def sample() -> list[str]:
        half = draw.text(1, 5, alphabet)
        return [half + draw.pick("", "a", "1", " ", "!") + draw.pick(half[::-1], half[::-1].swapcase(), half, half[::-1] + ".", "b" + half)]

    return Draft(
        "is_mirrored reads_same is_palindrome same_both_ways",
        """<A text is mirrored when|Call a text mirrored when> it reads the same from both ends, if one looks only at its $words and
        <ignores case|treats upper and lower case alike>. Write `solve(text)` that <tells|returns> whether `text` is mirrored. <A
        text without any such characters is mirrored.|If nothing is left to compare, the answer is `True`.>""",
        [
            """
            def solve(text):
                result = [char.lower() for char in text if char.$method()]
                return result == result[::-1]
            """,
            """
            def solve(text):
                result = ''
                for char in text:
                    if char.$method():
                        result += char.lower()
                left = 0
                right = len(result) - 1
                while left < right:
                    if result[left] != result[right]:
                        return False
                    left += 1
                    right -= 1
                return True
            """,
        ],
        sample,
        [[""], ["?!"], ["a"], ["1a"], ["Ab ba"], ["12 21x"], ["aa1b11b1aA"], ["abcA"], ["12a"]],
        {"words": words, "method": method},
    )


@_family("introductory")
def _every_kth(draw: Draw) -> Draft:
    k, first = draw.number(2, 5), draw.number(1, 3)
    ordinal = ("second", "third", "fourth")[first - 1]
    return Draft(
        "every_kth pick_letters thin_out sample_text skip_through",
        """<Write|Implement> `solve(text)` that returns every $kth character of `text`, <starting with|beginning at> the $ordinal one
        (<so|that is,> positions $a, $b, $c and so on, when the first character has position 0). <A text that is too short gives an
        empty string.|Where there is no such character, return an empty string.>""",
        [
            """
            def solve(text):
                result = ''
                for i in range(len(text)):
                    if i >= $a and (i - $a) % $k == 0:
                        result += text[i]
                return result
            """,
            """
            def solve(text):
                return text[$a::$k]
            """,
            """
            def solve(text):
                result = []
                i = $a
                while i < len(text):
                    result.append(text[i])
                    i += $k
                return ''.join(result)
            """,
        ],
        lambda: [draw.text(1, 16)],
        [[""], ["ab"], ["abc"], ["abcdefghijklmnop"]],
        {"k": k, "kth": ("second", "third", "fourth", "fifth")[k - 2], "ordinal": ordinal, "a": first, "b": first + k, "c": first + 2 * k},
    )


@_family("introductory")
def _shift_letters(draw: Draw) -> Draft:
    forward, letters = draw.coin(), draw.pick("abcdefghijklmnopqrstuvwxyz", "abcdefghij", "mnopqrstuvwxyz")
    return Draft(
        "shift_letters encode_text rotate_letters encrypt move_letters",
        """<Write|Implement> `solve(text, shift)`: every <small letter|lower-case letter> from $first to $last is replaced by the
        letter `shift` places $way it <within these $n letters|in the range from $first to $last>, <going round at the end|wrapping
        around>; all other characters stay as they are. `shift` is not negative and may be larger than $n.""",
        [
            """
            def solve(text, shift):
                result = ''
                for char in text:
                    if '$first' <= char <= '$last':
                        i = (ord(char) - ord('$first') $sign shift) % $n
                        result += chr(ord('$first') + i)
                    else:
                        result += char
                return result
            """,
            """
            def solve(text, shift):
                letters = '$letters'
                result = []
                for char in text:
                    if char in letters:
                        char = letters[(letters.index(char) $sign shift) % len(letters)]
                    result.append(char)
                return ''.join(result)
            """,
        ],
        lambda: [draw.text(2, 8, letters + letters + "AZ .") + letters[-1], draw.number(0, 2 * len(letters))],
        [["", 3], [letters, 1], [letters, len(letters)], ["Hello, World", 2], [letters[::-1], len(letters) + 1]],
        {
            "first": letters[0],
            "last": letters[-1],
            "n": len(letters),
            "letters": letters,
            "way": "after" if forward else "before",
            "sign": "+" if forward else "-",
        },
    )


@_family("introductory")
def _change_case(draw: Draw) -> Draft:
    k, up = draw.number(2, 4), draw.coin()
    return Draft(
        "change_case restyle mark_letters set_case",
        """<Write|Create> `solve(text)`. <In the result|In the returned text> every $kth character of `text` (character $k, character
        $kk, and so on, counting from one) is in $case case, and all others are in $opposite case. <Characters that are no letters
        count, but stay as they are.|Spaces and digits are counted as well, and are not changed.>""",
        [
            """
            def solve(text):
                result = ''
                for i, char in enumerate(text):
                    if (i + 1) % $k == 0:
                        result += char.$yes()
                    else:
                        result += char.$no()
                return result
            """,
            """
            def solve(text):
                return ''.join(char.$yes() if i % $k == 0 else char.$no() for i, char in enumerate(text, 1))
            """,
        ],
        lambda: [draw.text(2, 12, "abcdefXYZW 1")],
        [[""], ["a"], ["aB"], ["abcdefghijkl"], ["ABCDEFGHIJKL"]],
        {
            "k": k,
            "kth": ("second", "third", "fourth")[k - 2],
            "kk": 2 * k,
            "yes": "upper" if up else "lower",
            "no": "lower" if up else "upper",
            "case": "upper" if up else "lower",
            "opposite": "lower" if up else "upper",
        },
    )


@_family("introductory")
def _collapse_runs(draw: Draw) -> Draft:
    k = draw.number(1, 3)
    return Draft(
        "collapse_runs shorten_runs squeeze limit_repeats",
        """<A run is a stretch of equal characters that stand side by side.|By a run we mean equal neighbouring characters.>
        <Write|Implement> `solve(text)` that <shortens|cuts> every run of more than $k equal characters in `text` to <exactly|just>
        $k, <and leaves the rest alone|and returns the new text>.""",
        [
            """
            def solve(text):
                result = ''
                count = 0
                for i in range(len(text)):
                    if i > 0 and text[i] == text[i - 1]:
                        count += 1
                    else:
                        count = 1
                    if count <= $k:
                        result += text[i]
                return result
            """,
            """
            def solve(text):
                result = []
                previous = ''
                count = 0
                for char in text:
                    if char != previous:
                        previous = char
                        count = 0
                    count += 1
                    if count > $k:
                        continue
                    result.append(char)
                return ''.join(result)
            """,
        ],
        lambda: ["".join(draw.pick(*"abc") * draw.number(1, 5) for _ in range(draw.number(1, 5)))],
        [[""], ["a"], ["aaaaaa"], ["abab"], ["aabbbaaaa"], ["aaabcccc"]],
        {"k": k},
    )
