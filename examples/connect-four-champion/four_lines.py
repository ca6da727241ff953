"""A network for Connect Four that is given the lines of four, and learns what they are worth.

Its first layers have fixed weights. They compute for every line how many stones of one player alone it holds, which
empty cells would complete a line, and in which of these the next stone can land. Two dense layers learn from these
features. The fixed layers are part of the exported ONNX graph: a gateway or client that runs the model does not need
this file.
"""

import torch
from torch import Tensor, nn

ROWS, COLUMNS = 6, 7
CELLS = ROWS * COLUMNS
DIRECTIONS = ((0, 1), (1, 0), (1, 1), (-1, 1))  # (down, right)


def lines() -> list[list[int]]:
    """The 69 lines, four cells each; cells are counted by rows from the top left."""
    found = []
    for row in range(ROWS):
        for column in range(COLUMNS):
            for down, right in DIRECTIONS:
                rows, columns = [row + k * down for k in range(4)], [column + k * right for k in range(4)]
                if rows[-1] in range(ROWS) and columns[-1] in range(COLUMNS):
                    found.append([COLUMNS * r + c for r, c in zip(rows, columns, strict=True)])
    return found


class Lines(nn.Module):
    """Boards [n, 2, 6, 7], the player to move first → facts [n, FACTS], of which the last TACTICS are by column."""

    TACTICS = 4 * COLUMNS
    FACTS = 7 * CELLS + 4 * 69 + 1 + TACTICS

    of_line: Tensor
    of_rest: Tensor
    to_cell: Tensor

    def __init__(self) -> None:
        super().__init__()
        of_line, of_rest, to_cell = torch.zeros(CELLS, 69), torch.zeros(CELLS, 4 * 69), torch.zeros(4 * 69, CELLS)
        for index, line in enumerate(lines()):
            of_line[line, index] = 1
            for place, cell in enumerate(line):
                of_rest[[other for other in line if other != cell], 4 * index + place] = 1
                to_cell[4 * index + place, cell] = 1
        self.register_buffer("of_line", of_line)  # cells → lines
        self.register_buffer("of_rest", of_rest)  # cells → the three other cells of a line, for each cell of it
        self.register_buffer("to_cell", to_cell)  # that cell

    def forward(self, board: Tensor) -> Tensor:
        stones = board.reshape(-1, 2, CELLS)
        full = stones.sum(1)
        own = stones @ self.of_line
        alone = own - 4 * own.flip(1)  # above 0: stones in a line that holds none of the other player's
        wins = (torch.relu(stones @ self.of_rest - 2) @ self.to_cell).clamp(max=1) * (1 - full).unsqueeze(1)
        grid = full.reshape(-1, ROWS, COLUMNS)
        reached = torch.cat([grid[:, 1:], torch.ones_like(grid[:, :1])], 1) * (1 - grid)  # where a stone would land
        above = torch.cat([reached[:, 1:], torch.zeros_like(grid[:, :1])], 1)
        # 1 where the player to move began second, else 0: threats in odd rows suit one player, in even rows the other.
        moves_second = (stones[:, 1] - stones[:, 0]).sum(1, keepdim=True)
        by_column = [
            (wins.reshape(-1, 2, ROWS, COLUMNS) * where.unsqueeze(1)).sum(2).flatten(1) for where in (reached, above)
        ]
        cells = [stones, wins, wins * moves_second.unsqueeze(2), reached]
        counts = [torch.relu(alone), torch.relu(alone - 1)]
        return torch.cat([*(part.flatten(1) for part in (*cells, *counts)), moves_second, *by_column], 1)


class FourLines(nn.Module):
    """The facts, two dense layers, and heads that see what can be won or lost at once as well."""

    def __init__(self, inputs: tuple[int, ...], outputs: dict[str, int], units: int = 256) -> None:
        super().__init__()
        self.lines = Lines()
        self.body = nn.Sequential(nn.Linear(Lines.FACTS, units), nn.ReLU(), nn.Linear(units, units), nn.ReLU())
        self.heads = nn.ModuleDict({name: nn.Linear(units + Lines.TACTICS, size) for name, size in outputs.items()})
        for layer in (self.body[0], self.body[2]):
            nn.init.orthogonal_(layer.weight, 2**0.5)
        for head in self.heads.values():
            nn.init.orthogonal_(head.weight, 0.01)
        for layer in (self.body[0], self.body[2], *self.heads.values()):
            nn.init.zeros_(layer.bias)

    def forward(self, board: Tensor) -> dict[str, Tensor]:
        facts = self.lines(board)
        features = torch.cat([self.body(facts), facts[:, -Lines.TACTICS :]], 1)
        return {name: head(features) for name, head in self.heads.items()}
