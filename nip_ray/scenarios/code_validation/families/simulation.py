"""Families that follow rules step by step."""

from nip_ray.scenarios.code_validation.families.base import Draft, Draw, Family, collect

FAMILIES: list[Family] = []
_family = collect(FAMILIES)


@_family("introductory")
def _robot(draw: Draw) -> Draft:
    k = draw.number(2, 5)
    up, down, left, right = draw.pick("NSWE", "UDLR", "udlr")
    what, tail = draw.pick(
        ("where it ends, as a list [x, y]", "[x, y]"), ("its final distance from the start, measured as abs(x) + abs(y)", "abs(x) + abs(y)")
    )
    return Draft(
        "robot_walk follow_path move_robot trace_steps",
        """A robot starts at x = 0, y = 0 and obeys the letters of `steps`: '$up' adds 1 to y, '$down' takes 1 from y, '$right' adds 1
        to x and '$left' takes 1 from x. It never leaves the area in which x and y are from -$k to $k: a step that would lead out of
        it is <skipped|not carried out>. `solve(steps)` returns $what.""",
        [
            """
            def solve(steps):
                x = 0
                y = 0
                for step in steps:
                    if step == '$up' and y < $k:
                        y += 1
                    elif step == '$down' and y > -$k:
                        y -= 1
                    elif step == '$right' and x < $k:
                        x += 1
                    elif step == '$left' and x > -$k:
                        x -= 1
                return $tail
            """,
            """
            def solve(steps):
                x, y = (0, 0)
                for step in steps:
                    if step in '$up$down':
                        y += 1 if step == '$up' else -1
                    else:
                        x += 1 if step == '$right' else -1
                    x = max(-$k, min($k, x))
                    y = max(-$k, min($k, y))
                return $tail
            """,
        ],
        lambda: [draw.text(2, 14, draw.pick(up + right, up + down + left + right, down + left + left, up + up + right + down))],
        [[""], [up], [left], [up * (k + 2) + down], [right * (k + 1) + left * 2], [down * (k + 3)], [left * (k + 1) + up]],
        {"k": k, "up": up, "down": down, "left": left, "right": right, "what": what, "tail": tail},
    )


@_family("introductory")
def _tank(draw: Draw) -> Draft:
    words, tail = draw.pick(("how much is in the tank at the end", "balance"), ("how much has run over in all", "rest"))
    leak = draw.number(1, 3)
    return Draft(
        "fill_tank tank_level water_level run_tank",
        """A tank holds at most `limit` litres and is empty at first. In every hour of `values` the given number of litres <flows in|is
        added> (taken out, if negative); what is more than `limit` runs over, and <no more than there is can be taken out|the tank
        never holds less than nothing>.$rule `solve(values, limit)` returns $words.""",
        [
            """
            def solve(values, limit):
                balance = 0
                rest = 0
                for value in values:
                    balance += value
                    if balance > limit:
                        rest += balance - limit
                        balance = limit
                    balance = max(balance - $leak, 0)
                return $tail
            """,
            """
            def solve(values, limit):
                balance = 0
                rest = 0
                for value in values:
                    current = balance + value
                    balance = min(current, limit)
                    rest += current - balance
                    balance -= $leak
                    if balance < 0:
                        balance = 0
                return $tail
            """,
        ],
        lambda: [draw.numbers(2, 7, -4, 8), draw.number(3, 10)],
        [[[], 5], [[5], 5], [[6], 5], [[-3, 4], 5], [[4, -9, 4], 6], [[9, 9, -2, 1], 7], [[1, 1, 1, 1], 3]],
        {
            "words": words,
            "tail": tail,
            "leak": leak,
            "rule": f" At the end of each hour {leak} more {'is' if leak == 1 else 'are'} lost, or what there is if that is less.",
        },
    )


@_family("interview")
def _automaton(draw: Draw) -> Draft:
    live, dead = draw.pick(("#", "."), ("1", "0"), ("x", "-"))
    survive, born = draw.pick(((1,), (1,)), ((1, 2), (2,)), ((0, 1), (1,)), ((2,), (1, 2)), ((1,), (1, 2)))
    ring = draw.coin()
    around = "i - 1, (i + 1) % n" if ring else "i - 1, i + 1"
    say = {(0,): "none", (1,): "exactly one", (2,): "both", (1, 2): "at least one", (0, 1): "at most one"}
    return Draft(
        "cell_row evolve_row play_row next_rows",
        """The row of cells `text` is made of '$live' (alive) and '$dead' (dead), and has at least three cells. At every step all cells
        change at once: a living cell stays alive if $survive of its two neighbours $live_now<, else it dies| and dies otherwise>; a
        dead cell comes to life if $born of its neighbours $born_now. $ends `solve(text, steps)` returns the row after so many
        steps.""",
        [
            """
            def solve(text, steps):
                n = len(text)
                for _ in range(steps):
                    changed = ''
                    for i in range(n):
                        count = 0
                        for j in ($around):
                            if $inside text[j] == '$live':
                                count += 1
                        if text[i] == '$live':
                            flag = count in $stay
                        else:
                            flag = count in $come
                        changed += '$live' if flag else '$dead'
                    text = changed
                return text
            """,
            """
            def solve(text, steps):
                current = [char == '$live' for char in text]
                while steps > 0:
                    left = [$edge_left] + current[:-1]
                    right = current[1:] + [$edge_right]
                    current = [a + b in ($stay if flag else $come) for flag, a, b in zip(current, left, right)]
                    steps -= 1
                return ''.join('$live' if flag else '$dead' for flag in current)
            """,
        ],
        lambda: [draw.text(3, 9, live + dead), draw.number(1, 4)],
        [[live * 3, 0], [live * 3, 1], [dead * 4, 2], [live + dead * 3, 1], [dead * 3 + live, 1], [dead + live + dead * 2, 3]],
        {
            "live": live,
            "dead": dead,
            "survive": say[survive],
            "live_now": "are alive" if survive == (2,) else "is alive",
            "born_now": "are alive" if born == (2,) else "is alive",
            "born": say[born],
            "stay": survive,
            "come": born,
            "around": around,
            "inside": "" if ring else "0 <= j < n and",
            "edge_left": "current[-1]" if ring else "False",
            "edge_right": "current[0]" if ring else "False",
            "ends": "The first and the last cell are neighbours of each other."
            if ring
            else "The missing neighbours of the first and of the last cell count as dead.",
        },
    )


@_family("interview")
def _circle_count(draw: Draw) -> Draft:
    what, back = draw.coin(), draw.coin()
    return Draft(
        "circle_game last_standing circle_order elimination",
        """`n` children, numbered from 1 to `n`, stand in a circle. One counts from 1 to `steps`, <beginning with|starting at> child 1;
        the child that `steps` falls on leaves the circle, and counting starts again with the next one that is left. This goes on
        until $end. `solve(n, steps)` returns $what. <Both arguments are at least 1.|Neither argument is below 1.>""",
        [
            """
            def solve(n, steps):
                values = list(range(1, n + 1))
                result = []
                i = 0
                while values:
                    i = (i + steps - 1) % len(values)
                    result.append(values.pop(i))
                return $tail
            """,
            """
            def solve(n, steps):
                queue = [value + 1 for value in range(n)]
                result = []
                while len(queue) > 0:
                    for _ in range(steps - 1):
                        queue.append(queue.pop(0))
                    result.append(queue.pop(0))
                return $tail
            """,
        ],
        lambda: [draw.number(2, 12), draw.number(1, 7)],
        [[1, 1], [1, 5], [2, 1], [2, 2], [5, 1], [5, 2], [7, 3], [4, 9]],
        {
            "end": "one child is left" if what else "nobody is left",
            "what": "the number of that child"
            if what
            else (
                "the list of numbers in the order of leaving"
                + (", turned round, so that the last one to leave comes first" if back else "")
            ),
            "tail": "result[-1]" if what else ("result[::-1]" if back else "result"),
        },
    )


@_family("interview")
def _editor(draw: Draw) -> Draft:
    undo, cut, k = draw.pick("undo", "back"), draw.pick("cut", "erase"), draw.number(1, 3)
    return Draft(
        "run_editor edit_text typing_result play_editor",
        """A text is empty at first, and `orders` lists what is done to it. ['type', t] adds the text t at its end; ['$cut'] removes
        its last $count (all, if there are fewer); ['$undo'] takes back the latest 'type' or '$cut' that is not taken back yet, and
        does nothing if there is none. `solve(orders)` returns the text at the end. <Also a ['$cut'] that removes nothing can be
        taken back|A ['$cut'] counts even if it removes nothing>.""",
        [
            """
            def solve(orders):
                text = ''
                stack = []
                for order in orders:
                    if order[0] == 'type':
                        stack.append(text)
                        text += order[1]
                    elif order[0] == '$cut':
                        stack.append(text)
                        text = text[:-$k]
                    elif stack:
                        text = stack.pop()
                return text
            """,
            """
            def solve(orders):
                seen = ['']
                for order in orders:
                    if order[0] == '$undo':
                        if len(seen) > 1:
                            seen.pop()
                    elif order[0] == '$cut':
                        seen.append(seen[-1][:max(len(seen[-1]) - $k, 0)])
                    else:
                        seen.append(seen[-1] + order[1])
                return seen[-1]
            """,
        ],
        lambda: [[draw.pick(["type", draw.text(1, 4)], ["type", draw.text(1, 4)], [cut], [undo]) for _ in range(draw.number(2, 8))]],
        [
            [[]],
            [[[undo]]],
            [[[cut]]],
            [[["type", "abcdef"], [cut]]],
            [[["type", "abc"], [cut], [undo]]],
            [[["type", "ab"], ["type", "cd"], [undo], [undo], [undo]]],
            [[[cut], ["type", "x"], [undo], [undo]]],
        ],
        {"undo": undo, "cut": cut, "k": k, "count": "character" if k == 1 else f"{k} characters"},
    )


@_family("competition")
def _shared_time(draw: Draw) -> Draft:
    late, what = draw.coin(), draw.coin()
    return Draft(
        "shared_time finish_order run_tasks turn_taking",
        """Task i needs `values[i]` units of time, at least 1. The tasks wait in a queue, <at first in the order of the list|in the
        list's order at first>. The first of them runs for `limit` units, or for what it still needs if that is less; then, if it is
        not done, it goes to the end of the queue.$rule `solve(values, limit)` returns $what. `limit` is at least 1.""",
        [
            """
            def solve(values, limit):
                queue = [(i, value) for i, value in enumerate(values)]
                result = [0] * len(values)
                order = []
                total = 0
                count = 0
                while queue:
                    i, rest = queue.pop(0)
                    step = min(rest, limit)
                    total += step
                    if rest > step:
                        queue.append((i, rest - step))
                        $pause
                    else:
                        result[i] = total
                        order.append(i)
                return $tail
            """,
            """
            def solve(values, limit):
                rest = list(values)
                result = [0] * len(values)
                order = []
                total = 0
                while any(value > 0 for value in rest):
                    for i in range(len(rest)):
                        if rest[i] == 0:
                            continue
                        if rest[i] <= limit:
                            total += rest[i]
                            rest[i] = 0
                            result[i] = total
                            order.append(i)
                        else:
                            rest[i] -= limit
                            total += limit
                            $pause
                return $tail
            """,
        ],
        lambda: [draw.numbers(2, 5, 1, 9), draw.number(1, 4)],
        [[[], 2], [[3], 3], [[3], 2], [[1, 1], 1], [[4, 2, 1], 2], [[2, 4, 2], 2], [[5, 5], 10]],
        {
            "rule": " Putting a task back takes 1 unit of time." if late else "",
            "pause": "total += 1" if late else "continue",
            "what": "the list of times at which tasks 0, 1, and so on are done"
            if what
            else "the list of task numbers, from 0, in the order in which they are done",
            "tail": "result" if what else "order",
        },
    )


@_family("competition")
def _cache(draw: Draw) -> Draft:
    recent, what = draw.coin(), draw.coin()
    return Draft(
        "cache_run cache_hits memory_use simulate_cache",
        """A cache has room for `limit` keys, at least one. The keys in `words` are asked for one after the other: one that is in the
        cache is a hit, another one is taken in, <and if the cache was full|where, if there is no room,> the key $rule leaves first.
        `solve(words, limit)` returns $what.""",
        [
            """
            def solve(words, limit):
                queue = []
                count = 0
                for word in words:
                    if word in queue:
                        count += 1
                        $touch
                    else:
                        if len(queue) == limit:
                            queue.pop(0)
                        queue.append(word)
                return $tail
            """.replace("$touch", "queue.remove(word)\n                        queue.append(word)" if recent else "continue"),
            """
            def solve(words, limit):
                seen = {}
                count = 0
                for i, word in enumerate(words):
                    if word in seen:
                        count += 1
                        $again
                    if word not in seen and len(seen) >= limit:
                        del seen[min(seen, key=seen.get)]
                    seen[word] = i
                return $tail2
            """,
        ],
        lambda: [draw.texts(4, 12, "abcd", (1, 1)), draw.number(1, 3)],
        [
            [[], 1],
            [["a"], 1],
            [["a", "a"], 1],
            [["a", "b", "a"], 1],
            [["a", "b", "a", "c", "a"], 2],
            [["a", "b", "a", "c", "b"], 2],
            [["a", "b", "c", "d", "a"], 3],
        ],
        {
            "rule": "that has not been asked for the longest" if recent else "that has been in the cache the longest",
            "what": "the number of hits" if what else "the keys in the cache at the end, the next to leave first",
            "tail": "count" if what else "queue",
            "tail2": "count" if what else "sorted(seen, key=seen.get)",
            "again": "seen.pop(word)" if recent else "continue",
        },
    )
