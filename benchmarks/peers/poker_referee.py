"""The exploitability of tables (see _poker.py) by OpenSpiel's C++: half of NashConv. For OpenSpiel's environment."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pyspiel


def key_of(state: Any, leduc: bool) -> str:
    """The table's key of an information set."""
    text, player = state.information_state_string(), state.current_player()
    if not leduc:
        return f"{player}|{text[0]}|-|" + " ".join({"p": "0", "b": "1"}[move] for move in text[1:])
    private, public = re.search(r"Private: (\d)", text), re.search(r"Public: (\d)", text)
    rounds = re.findall(r"\[Round\d: ?([\d ]*)\]", text)
    assert private is not None
    card = int(private[1]) // 2
    seen = "-" if public is None else str(int(public[1]) // 2)
    return f"{player}|{card}|{seen}|{rounds[0].strip()}" + ("" if public is None else f"/{rounds[1].strip()}")


def keys_of(game: Any) -> dict[str, str]:
    """Information set -> key."""
    found, leduc = {}, "leduc" in str(game)
    waiting = [game.new_initial_state()]
    while waiting:
        state = waiting.pop()
        if state.is_terminal():
            continue
        if not state.is_chance_node():
            found[state.information_state_string()] = key_of(state, leduc)
        waiting += [state.child(action) for action in state.legal_actions()]
    return found


if __name__ == "__main__":
    game = pyspiel.load_game(sys.argv[1])
    keys = keys_of(game)
    values = []
    for table in json.loads(Path(sys.argv[2]).read_text()):
        policy = {name: [(int(move), chance) for move, chance in table[key].items()] for name, key in keys.items()}
        values.append(pyspiel.nash_conv(game, policy) / 2)
    print(json.dumps(values))
