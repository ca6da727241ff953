"""Connect Four of PettingZoo between two torch networks, as a careful user would write it for speed. Prints JSON.

python bench/peers/matches_pettingzoo.py WEIGHTS BATCH GAMES SEED

`raw_env` without its wrappers' checks, observed once a move; one forward pass of each player for all boards on which it
is to move; boards whose game is over begin the next one at once. Each side's first three moves are drawn among legal
ones, and no network is asked for them; then the best legal action, as in our matches. Each player has each side of half
of the games.
"""

import json
import sys
import time

import numpy as np
import torch
from pettingzoo.classic.connect_four.connect_four import raw_env
from safetensors.numpy import load_file

DRAWN = 3  # first moves of each side
torch.set_num_threads(1)


def network(weights):
    layers = []
    for place in ("trunk/0", "trunk/1", "logits"):
        weight = torch.from_numpy(weights[f"{place}/weight"])
        if place == "trunk/0":  # its boards are [6, 7, 2], ours [2, 6, 7]
            weight = weight.reshape(-1, 2, 6, 7).permute(0, 2, 3, 1).reshape(len(weight), 84)
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0])
        layer.weight.data, layer.bias.data = weight.contiguous(), torch.from_numpy(weights[f"{place}/bias"])
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1]).eval()


class Board:
    """One environment and the number of its game."""

    def __init__(self, game):
        self.env = raw_env()
        self.begin(game)

    def begin(self, game):
        self.game, self.moves = game, 0
        self.env.reset()


@torch.inference_mode()
def best(net, boards, seen):
    logits = net(torch.from_numpy(np.stack([one["observation"] for one in seen])).flatten(1).float())
    legal = torch.from_numpy(np.stack([one["action_mask"] for one in seen])).bool()
    return logits.masked_fill(~legal, -torch.inf).argmax(1).tolist()


def play(players, batch, games, seed):
    rng = np.random.default_rng(seed)
    boards, begun, ticks = [Board(game) for game in range(min(batch, games))], min(batch, games), 0
    score = np.zeros(3, int)  # of the first player: won, drawn, lost
    while boards:
        waiting = ([], []), ([], [])
        chosen = []
        for board in boards:
            seen = board.env.observe(board.env.agent_selection)
            if board.moves < 2 * DRAWN:
                legal = np.flatnonzero(seen["action_mask"])
                chosen.append((board, int(legal[int(rng.random() * len(legal))])))
            else:
                ours, views = waiting[(board.game + board.moves) % 2]
                ours.append(board)
                views.append(seen)
        for net, (ours, views) in zip(players, waiting, strict=True):
            if ours:
                chosen += zip(ours, best(net, ours, views), strict=True)
        left = []
        for board, action in chosen:
            env = board.env
            env.step(action)
            board.moves += 1
            ticks += 1
            if env.terminations["player_0"]:
                result = env.rewards["player_0"] * (1 if board.game % 2 == 0 else -1)
                score[1 - int(result)] += 1
                if begun == games:
                    continue
                board.begin(begun)
                begun += 1
            left.append(board)
        boards = left
    return score, ticks


weights, (batch, games, seed) = load_file(sys.argv[1]), map(int, sys.argv[2:5])
players = network(weights), network(weights)
play(players, 8, 8, seed)
print("ready", flush=True)
sys.stdin.readline()
begun, cpu = time.perf_counter(), time.process_time()
score, ticks = play(players, batch, games, seed)
took = {"seconds": time.perf_counter() - begun, "cpu_s": time.process_time() - cpu}
print(json.dumps({**took, "games": games, "ticks": ticks, "score": score.tolist()}), flush=True)
