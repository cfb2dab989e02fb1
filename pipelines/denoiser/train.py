"""Trains the denoiser on pictures that it generates: `train.py --module FOLDER --weights FILE`.

A training program of yours looks like this: it imports `load_model` from the folder that `export_pytorch` wrote, and
saves the state dict. `ndld-flow` starts it (`run_tool`) and writes the weights into the ONNX model.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

SIDE, BATCH = 32, 8


def picture(random: np.random.Generator) -> np.ndarray:
    """Return a gray picture, from 0 to 1: a slope of light, with shapes and strokes as sharp as print."""
    y, x = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    image = random.uniform(0, 1) + random.uniform(-0.4, 0.4) * x + random.uniform(-0.4, 0.4) * y
    for _ in range(random.integers(2, 7)):
        middle, size = random.uniform(0, 1, 2), random.uniform(0.02, 0.3, 2)
        inside = (abs(x - middle[0]) < size[0]) & (abs(y - middle[1]) < size[1])
        if random.uniform() < 0.5:
            inside = (x - middle[0]) ** 2 + (y - middle[1]) ** 2 < size[0] ** 2
        image = np.where(inside, random.uniform(0, 1), image)
    return image.clip(0, 1).astype(np.float32)


def train(network: nn.Module, steps: int, noise: float) -> None:
    """Train in place; each step has new pictures and new noise, and prints how many decibels the noise loses."""
    random, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    for name, weight in network.named_parameters():
        if weight.ndim > 1:
            nn.init.kaiming_normal_(weight, generator=generator)
            if name.startswith("tail"):
                nn.init.zeros_(weight)  # so that training starts with the noisy picture itself
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for step in range(steps):
        clean = torch.from_numpy(np.stack([picture(random) for _ in range(BATCH)])[:, None])
        added = noise * torch.randn(clean.shape, generator=generator)
        loss = nn.functional.mse_loss(network(clean + added), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 25 == 24:
            print(f"step {step + 1}: PSNR {-10 * loss.log10().item():.2f} dB", flush=True)


def main() -> None:
    """Read the arguments, train, and save the state dict."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--module", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--noise", type=float, default=0.1, help="standard deviation, of pictures from 0 to 1")
    given = parser.parse_args()
    sys.path.insert(0, str(given.module))
    from model import load_model  # the folder of `export_pytorch`

    torch.manual_seed(0)
    network = load_model().train()
    train(network, given.steps, given.noise)
    save_file(network.state_dict(), given.weights)


if __name__ == "__main__":
    main()
