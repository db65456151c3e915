"""Train the ranker of regions on BSDS500 and write its weights for the package.

    python tools/train_ranker.py BSDS500 --out src/annocoin/weights/ranker.safetensors

BSDS500 contains `images/{train,val}` and `groundTruth/{train,val}`. The network is trained to
predict a candidate's best IoU with the annotated segments: half the mean over the annotators, half
the best of them. Segments that touch two or more sides of the image count as background. Run it
again whenever the boundary detector, the trees or the candidates change.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import scipy.io
import torch
from safetensors.torch import load_file, save
from torch import nn

from annocoin.data.images import read_image
from annocoin.files import write_bytes
from annocoin.progress import track
from annocoin.regions.hierarchy import CandidateRegions, candidate_regions
from annocoin.regions.proposals import RegionProposer
from annocoin.regions.ranking import Ranker, region_features
from annocoin.regions.superpixel_graph import SuperpixelGraph

HIDDEN = 96
BATCH = 4096


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, metavar="BSDS500")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--splits", nargs="+", default=["train", "val"])
    parser.add_argument("--boundaries", type=Path, help="weights of the boundary network")
    parser.add_argument("--passes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    paths = [
        path
        for split in options.splits
        for path in sorted((options.data / "images" / split).glob("*.jpg"))
    ]
    if not paths:
        parser.error(f"{options.data}: no images/{options.splits[0]}/*.jpg in it")
    propose = RegionProposer(ranker=Ranker({}))
    if options.boundaries is not None:
        propose.detector.load(load_file(options.boundaries))
    rows, targets = [], []
    for path in track(paths, "computing features"):
        analysis = propose.analyse(read_image(path))
        graph = analysis.graph
        candidates = candidate_regions(analysis.trees, graph, propose.candidates)
        truth = options.data / "groundTruth" / path.parent.name / f"{path.stem}.mat"
        rows.append(region_features(graph, candidates))
        targets.append(target(graph, candidates, segmentations(truth)))
    weights = train(np.concatenate(rows), np.concatenate(targets), options.passes, options.seed)
    write_bytes(options.out, save(weights))


def segmentations(path: Path) -> list[npt.NDArray[np.integer]]:
    """The segment map [H, W] of every annotator."""
    truth = scipy.io.loadmat(path)["groundTruth"]
    return [truth[0, i]["Segmentation"][0, 0] for i in range(truth.shape[1])]


def target(
    graph: SuperpixelGraph, candidates: CandidateRegions, maps: list[npt.NDArray[np.integer]]
) -> npt.NDArray[np.float32]:
    """The IoU of each candidate with the segments of every annotator's map, float32 [N]."""
    members = candidates.members.astype(np.float32)
    sizes = members @ graph.areas.astype(np.float32)
    best = []
    for segments in maps:
        count = int(segments.max()) + 1
        table = np.bincount(
            graph.ids.ravel().astype(np.int64) * count + segments.ravel(),
            minlength=len(graph.areas) * count,
        ).reshape(-1, count)
        common = members @ table.astype(np.float32)
        union = sizes[:, None] + table.sum(axis=0) - common
        best.append((common / union * (sides_touched(segments) < 2)).max(axis=1))
    overlaps = np.stack(best)
    return ((overlaps.mean(axis=0) + overlaps.max(axis=0)) / 2).astype(np.float32)


def sides_touched(segments: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """How many sides of the image each segment touches, [max id + 1]."""
    sides = (segments[0], segments[-1], segments[:, 0], segments[:, -1])
    touched = [np.bincount(side, minlength=int(segments.max()) + 1) > 0 for side in sides]
    return np.sum(touched, axis=0)


def train(
    rows: npt.NDArray[np.float32], targets: npt.NDArray[np.float32], passes: int, seed: int
) -> dict[str, torch.Tensor]:
    """Fit a network with two hidden layers by least squares: its weights and the input scaling."""
    torch.manual_seed(seed)
    mean, spread = rows.mean(axis=0), rows.std(axis=0) + 1e-6
    inputs = torch.from_numpy((rows - mean) / spread).clamp(-5, 5)
    expected = torch.from_numpy(targets)
    net = nn.Sequential(
        nn.Linear(inputs.shape[1], HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, 1),
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-4)
    steps = passes * -(-len(inputs) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        batch = torch.randint(len(inputs), (BATCH,))
        loss = (net(inputs[batch])[:, 0] - expected[batch]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 200 == 0 or step == steps - 1:
            print(f"step {step}  loss {float(loss.detach()):.5f}", flush=True)
    print(f"{len(inputs)} candidates, variance {float(expected.var()):.5f}")
    scaling = {"mean": torch.from_numpy(mean), "spread": torch.from_numpy(spread)}
    return {name: value.detach() for name, value in net.state_dict().items()} | scaling


if __name__ == "__main__":
    main()
