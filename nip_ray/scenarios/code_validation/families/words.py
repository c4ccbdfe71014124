"""Families about words and stretches of text."""

from nip_ray.scenarios.code_validation.families.base import Draft, Draw, Family, collect

FAMILIES: list[Family] = []
_family = collect(FAMILIES)


@_family("introductory")
def _extreme_word(draw: Draw) -> Draft:
    longest, last = draw.coin(), draw.coin()
    operator = (">" if longest else "<") + ("=" if last else "")
    return Draft(
        "choose_word extreme_word find_word select_word pick_word",
        """`solve(text)` <gets|is given> a text whose words are separated by <spaces|blanks>. <Return|It returns> the $kind word; <if
        several words are equally $what|in case of a tie>, the $which of them. <For a text without words return an empty
        string.|Without words the result is `''`.>""",
        [
            """
            def solve(text):
                words = text.split()
                if not words:
                    return ''
                best = words[0]
                for word in words[1:]:
                    if len(word) $operator len(best):
                        best = word
                return best
            """,
            """
            def solve(text):
                words = text.split()
                best = ''
                for i, word in enumerate(words):
                    if i == 0 or len(word) $operator len(best):
                        best = word
                return best
            """,
        ],
        lambda: [" ".join(draw.texts(2, 7, "abcxyz", (1, 5)))],
        [[""], ["  "], ["one"], ["a b c"], ["aa bb c dd e"], ["ccc  a bbb   d"]],
        {
            "kind": "longest" if longest else "shortest",
            "what": "long" if longest else "short",
            "which": "last" if last else "first",
            "operator": operator,
        },
    )


@_family("introductory")
def _shared_beginning(draw: Draw) -> Draft:
    end = draw.coin()

    def sample() -> list[list[str]]:
        common = draw.text(0, 4, "ab")
        words = [draw.text(0, 3, "ab") for _ in range(draw.number(1, 4))]
        return [[word + common if end else common + word for word in words]]

    return Draft(
        "shared_part common_piece shared_affix common_affix",
        """<Given|For> a list `words`, `solve(words)` returns the longest text with which all of them $verb. <It may be empty.|This can
        be the empty text.> <For an empty list return an empty text.|If there are no words, the answer is `''`.>""",
        [
            """
            def solve(words):
                if not words:
                    return ''
                best = words[0]
                for word in words[1:]:
                    while not word.$method(best):
                        best = best[$cut]
                return best
            """,
            """
            def solve(words):
                if not words:
                    return ''
                n = min(len(word) for word in words)
                count = 0
                while count < n:
                    i = $position
                    if any(word[i] != words[0][i] for word in words):
                        break
                    count += 1
                return words[0][$taken]
            """,
        ],
        sample,
        [[[]], [["abc"]], [["", "a"]], [["abba", "abba"]], [["abca", "abda", "aba"]], [["ab", "b", "bab"]]],
        {
            "verb": "end" if end else "begin",
            "method": "endswith" if end else "startswith",
            "cut": "1:" if end else ":-1",
            "position": "-1 - count" if end else "count",
            "taken": "len(words[0]) - count:" if end else ":count",
        },
    )


@_family("interview")
def _run_lengths(draw: Draw) -> Draft:
    before, single = draw.coin(), draw.coin()
    piece = "str(count) + char" if before else "char + str(count)"
    shown = "(char if count == 1 else " + piece + ")" if single else piece
    return Draft(
        "run_lengths compress_runs pack_text write_runs",
        """<Write|Implement> `solve(text)` that <packs|compresses> a text of small letters: every <run|longest possible stretch> of
        equal letters becomes $form. $rule <An empty text stays empty.|The empty text is packed as itself.>""",
        [
            """
            def solve(text):
                result = ''
                i = 0
                while i < len(text):
                    j = i
                    while j < len(text) and text[j] == text[i]:
                        j += 1
                    char = text[i]
                    count = j - i
                    result += $shown
                    i = j
                return result
            """,
            """
            def solve(text):
                groups = []
                for char in text:
                    if groups and groups[-1][0] == char:
                        groups[-1][1] += 1
                    else:
                        groups.append([char, 1])
                return ''.join($shown for char, count in groups)
            """,
        ],
        lambda: ["".join(draw.pick(*"abc") * draw.pick(1, 1, 2, 3, 11) for _ in range(draw.number(1, 5)))],
        [[""], ["a"], ["aa"], ["aab"], ["abb"], ["abc"], ["z" * 12]],
        {
            "form": "its length followed by the letter" if before else "the letter followed by the run's length",
            "rule": "A run of one is written without the number 1." if single else "The number is written even for a run of one.",
            "shown": shown,
        },
    )


@_family("interview")
def _longest_varied(draw: Draw) -> Draft:
    k = draw.number(1, 3)
    return Draft(
        "longest_varied longest_part widest_window longest_stretch",
        """`solve(text)` returns the length of the longest <part|stretch|substring> of `text` (of neighbouring characters) in which no
        character occurs more than $times. <For an empty text this is 0.|The empty text gives 0.>""",
        [
            """
            def solve(text):
                counts = {}
                left = 0
                best = 0
                for right in range(len(text)):
                    char = text[right]
                    counts[char] = counts.get(char, 0) + 1
                    while counts[char] > $k:
                        counts[text[left]] -= 1
                        left += 1
                    best = max(best, right - left + 1)
                return best
            """,
            """
            def solve(text):
                best = 0
                for i in range(len(text)):
                    for j in range(i + 1, len(text) + 1):
                        window = text[i:j]
                        if all(window.count(char) <= $k for char in window):
                            best = max(best, len(window))
                return best
            """,
        ],
        lambda: [draw.text(3, 13, draw.pick("ab", "abc", "abcd", "abcdefgh"))],
        [[""], ["a"], ["aaaaaaa"], ["abcabcabc"], ["abba"], ["aabbccdd"], ["abcdefg"]],
        {"k": k, "times": "once" if k == 1 else f"{k} times"},
    )


@_family("interview")
def _group_anagrams(draw: Draw) -> Draft:
    least = draw.number(1, 3)
    return Draft(
        "group_anagrams letter_families same_letters anagram_groups",
        """Two words belong together when one <is made of|uses> exactly the letters of the other, in any order.
        `solve(words)` returns the groups of words that belong together and have at least $least $members (a repeated word counts
        each time), as lists. <Words keep their order within a group|A group's words stand in the order of `words`>, and groups are
        in the order of their first words.""",
        [
            """
            def solve(words):
                groups = {}
                for word in words:
                    key = ''.join(sorted(word))
                    groups.setdefault(key, []).append(word)
                return [group for group in groups.values() if len(group) >= $least]
            """,
            """
            def solve(words):
                result = []
                seen = [False] * len(words)
                for i in range(len(words)):
                    if seen[i]:
                        continue
                    group = []
                    for j in range(i, len(words)):
                        if sorted(words[j]) == sorted(words[i]):
                            group.append(words[j])
                            seen[j] = True
                    if len(group) >= $least:
                        result.append(group)
                return result
            """,
        ],
        lambda: [draw.texts(3, 8, "abc", (1, 3))],
        [[[]], [["a"]], [["ab", "ba", "ab"]], [["aab", "abb", "aba", "bab", "baa", "bba"]], [["abc", "d", "cab", "d"]]],
        {"least": least, "members": "member" if least == 1 else "members"},
    )


@_family("interview")
def _wrap_words(draw: Draw) -> Draft:
    gap = draw.pick(" ", "-", "_")
    return Draft(
        "wrap_words break_lines fill_lines typeset",
        """<Break a text into lines.|A text is to be broken into lines.> `solve(text, width)` puts the words of `text` (separated by
        blanks) into lines of at most `width` characters, <as many into each line as fit|filling each line as far as possible>
        before the next one is begun, joined by one '$gap'; that character counts. A word longer than `width` stands alone <in its
        line|on a line>. Return the list of lines.""",
        [
            """
            def solve(text, width):
                result = []
                line = ''
                for word in text.split():
                    if not line:
                        line = word
                    elif len(line) + 1 + len(word) <= width:
                        line += '$gap' + word
                    else:
                        result.append(line)
                        line = word
                if line:
                    result.append(line)
                return result
            """,
            """
            def solve(text, width):
                groups = []
                count = 0
                for word in text.split():
                    if groups and count + len(word) < width:
                        groups[-1].append(word)
                        count += len(word) + 1
                    else:
                        groups.append([word])
                        count = len(word)
                return ['$gap'.join(group) for group in groups]
            """,
        ],
        lambda: [" ".join(draw.texts(3, 8, "abcde", (1, 6))), draw.number(4, 11)],
        [["", 5], ["one", 3], ["one two", 7], ["one two", 6], ["elephants a b", 4], ["a b c d e", 3]],
        {"gap": gap},
    )
