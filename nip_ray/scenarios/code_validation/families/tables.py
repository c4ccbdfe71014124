"""Families about mappings and records."""

from nip_ray.scenarios.code_validation.families.base import Draft, Draw, Family, collect

FAMILIES: list[Family] = []
_family = collect(FAMILIES)


@_family("introductory")
def _update_stock(draw: Draw) -> Draft:
    least = draw.number(0, 2)
    goods = draw.pick(("nuts", "bolts", "pins"), ("tea", "milk", "salt"), ("pens", "ink", "glue"))

    def sample() -> list[dict[str, int]]:
        return [
            {name: draw.number(least + 1, 9) for name in goods if draw.coin()},
            {name: draw.number(-9, 6) for name in goods if draw.coin()},
        ]

    a, b, c = goods
    return Draft(
        "update_stock apply_delivery adjust_stock book_changes",
        """`stock` <says how many pieces of each article there are|maps the names of articles to numbers of pieces>, and `change` how
        many came in (positive) or went out (negative). `solve(stock, change)` returns the new numbers. <An article that `stock`
        does not have yet|An article not yet in `stock`> starts from 0. Articles of which $rule left <are not in the result|are left
        out of the result>.""",
        [
            """
            def solve(stock, change):
                result = dict(stock)
                for key, value in change.items():
                    result[key] = result.get(key, 0) + value
                return {key: value for key, value in result.items() if value > $least}
            """,
            """
            def solve(stock, change):
                result = {}
                for key in list(stock) + list(change):
                    value = stock.get(key, 0) + change.get(key, 0)
                    if value >= $more:
                        result[key] = value
                return result
            """,
        ],
        sample,
        [
            [{}, {}],
            [{a: 3}, {}],
            [{a: 3}, {a: least - 3}],
            [{a: 3}, {a: least - 2}],
            [{}, {b: -1}],
            [{}, {b: least + 1, c: least}],
            [{a: 5, b: 4}, {b: -3, c: 3}],
        ],
        {"least": least, "more": least + 1, "rule": ("nothing or less is", "one piece or less is", "two pieces or less are")[least]},
    )


@_family("interview")
def _top_names(draw: Draw) -> Draft:
    largest, names_down = draw.coin(), draw.coin()
    people = draw.pick(("ann", "bob", "cid", "dora", "eve"), ("ida", "jon", "kim", "lea", "max"), ("red", "tan", "sky", "ivy", "oak"))
    return Draft(
        "top_names leader_board best_players rank_names",
        """`scores` maps names to lists of points. <A name's total|The total of a name> is the sum of its points. `solve(scores, n)`
        returns the names of the `n` $kind totals, beginning with the $kind; names with the same total stand in $order order. <If
        there are fewer than `n` names, return all of them.|With fewer than `n` names, all are returned.>""",
        [
            """
            def solve(scores, n):
                ranked = sorted(scores$down)
                ranked = sorted(ranked, key=lambda key: $minus sum(scores[key]))
                return ranked[:n]
            """,
            """
            def solve(scores, n):
                pairs = [(sum(values), key) for key, values in scores.items()]
                result = []
                while pairs and len(result) < n:
                    best = pairs[0]
                    for value, key in pairs:
                        if value $better best[0] or (value == best[0] and key $before best[1]):
                            best = (value, key)
                    pairs.remove(best)
                    result.append(best[1])
                return result
            """,
        ],
        lambda: [{name: draw.numbers(0, 3, 0, 4) for name in draw.rng.sample(people, draw.number(2, 5))}, draw.number(1, 4)],
        [
            [{}, 2],
            [{people[0]: []}, 1],
            [{people[1]: [1], people[0]: [1]}, 1],
            [{people[0]: [2, 2], people[1]: [3]}, 2],
            [{people[2]: [5], people[0]: [1]}, 0],
        ],
        {
            "kind": "largest" if largest else "smallest",
            "order": "reverse alphabetical" if names_down else "alphabetical",
            "down": ", reverse=True" if names_down else "",
            "minus": "-" if largest else "",
            "better": ">" if largest else "<",
            "before": ">" if names_down else "<",
        },
    )


@_family("introductory")
def _frequent_word(draw: Draw) -> Draft:
    most, early = draw.coin(), draw.coin()
    return Draft(
        "frequent_word count_winner word_of_text poll_result",
        """`solve(words)` returns the word that occurs $kind often in the non-empty list `words`. If several do, it returns the one
        that $rule. <Upper and lower case are different.|Words are compared letter by letter, case included.>""",
        [
            """
            def solve(words):
                counts = {}
                for word in words:
                    counts[word] = counts.get(word, 0) + 1
                best = None
                for word in $order:
                    if best is None or counts[word] $op counts[best]:
                        best = word
                return best
            """,
            """
            def solve(words):
                i = $builtin(words.count(word) for word in words)
                return [word for word in $order if words.count(word) == i][0]
            """,
        ],
        lambda: [draw.texts(2, 9, "abA", (1, 1))],
        [[["a"]], [["b", "a"]], [["a", "b"]], [["b", "a", "a"]], [["c", "a", "b", "c", "b", "a"]], [["x", "y", "x", "y", "z"]]],
        {
            "kind": "most" if most else "least",
            "rule": "occurs first in the list" if early else "comes first in Python's order of texts",
            "order": "words" if early else "sorted(words)",
            "op": ">" if most else "<",
            "builtin": "max" if most else "min",
        },
    )


@_family("interview")
def _ledger(draw: Draw) -> Draft:
    limit = draw.pick(0, 5, 10)
    rule = "would become negative" if limit == 0 else f"would fall below -{limit}"
    people = draw.pick(("ann", "bob", "cid"), ("x", "y", "z"), ("north", "south", "east"))
    return Draft(
        "run_ledger settle_payments final_balances process_transfers",
        """<Every account starts with `amount` coins.|At the start, each account has `amount` coins.> Each entry of `orders` is a list
        of payer, receiver and a number of coins, in order of time. A payment is <refused|skipped> if the payer's balance $rule, and
        then <nothing moves|nothing is moved>. `solve(orders, amount)` returns the balances of all accounts that occur in `orders`,
        as a dict by name<, even if their payments were refused|, those of refused payments included>.""",
        [
            """
            def solve(orders, amount):
                balance = {}
                for first, second, value in orders:
                    balance.setdefault(first, amount)
                    balance.setdefault(second, amount)
                    if balance[first] - value >= $limit:
                        balance[first] -= value
                        balance[second] += value
                return balance
            """,
            """
            def solve(orders, amount):
                balance = {key: amount for order in orders for key in order[:2]}
                for order in orders:
                    rest = balance[order[0]] - order[2]
                    if rest < $limit:
                        continue
                    balance[order[0]] = rest
                    balance[order[1]] = balance[order[1]] + order[2]
                return balance
            """,
        ],
        lambda: [[[*draw.rng.sample(people, 2), draw.number(1, 9)] for _ in range(draw.number(2, 6))], draw.number(2, 8)],
        [
            [[], 5],
            [[[people[0], people[1], 5]], 5],
            [[[people[0], people[1], 6 + limit]], 5],
            [[[people[0], people[1], 5 + limit]], 5],
            [[[people[2], people[0], 4]], 3],
        ],
        {"limit": -limit, "rule": rule},
    )
