"""A character-level transformer on Python's own manual: `kf run -n 2`.

The text is what `help("topics")` shows; every Python ships it. Each worker takes other pieces,
and `SynchronousSGD` averages gradients while the backward pass goes on.
"""

from pydoc_data.topics import topics

import torch
from torch import nn

import kfcore as kf
import kfcore.torch as kft

CONTEXT, WIDTH, STEPS, BATCH = 48, 64, 150, 16


class Characters(nn.Module):
    """Guesses each next letter."""

    def __init__(self, n_letters: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(n_letters, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, n_letters)
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        self.register_buffer("mask", mask)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Scores of the next letter at each place."""
        x = self.letters(text) + self.places.weight
        return self.out(self.layers(x, mask=self.mask, is_causal=True))


def loss_of(model: nn.Module, pieces: torch.Tensor) -> torch.Tensor:
    guesses = model(pieces[:, :-1])
    return nn.functional.cross_entropy(guesses.flatten(0, 1), pieces[:, 1:].flatten())


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    text = "".join(topics[name] for name in sorted(topics))
    letters = sorted(set(text))
    codes = torch.tensor([letters.index(letter) for letter in text[:200_000]])
    pieces = codes.unfold(0, CONTEXT + 1, CONTEXT + 1)
    held_out = torch.arange(len(pieces)) % 10 == 0
    model = Characters(len(letters))
    with kf.init() as session:
        optimizer = kft.SynchronousSGD(
            torch.optim.AdamW(model.parameters(), lr=3e-3), session, model
        )
        draws = torch.Generator().manual_seed(session.rank)
        train = pieces[~held_out]
        with torch.no_grad():
            before = loss_of(model, pieces[held_out]).item()
        for _ in range(STEPS):
            rows = torch.randint(len(train), (BATCH,), generator=draws)
            optimizer.zero_grad()
            loss_of(model, train[rows]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        with torch.no_grad():
            after = loss_of(model, pieces[held_out]).item()
        if session.rank == 0:
            print(f"{STEPS} steps: loss of unseen text {before:.1f} -> {after:.1f} nats")


if __name__ == "__main__":
    main()
