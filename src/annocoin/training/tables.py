"""Loss tables: what a fixed prediction network thinks of every region, one file an image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from annocoin.data import arrays
from annocoin.data.arrays import Arrays, Fields
from annocoin.data.artefacts import ArtefactFolder

VERSION = 1
FIELDS: Fields = {"table": ((None, None), ("float16",))}


class TableFolder(ArtefactFolder[Tensor]):
    """The tables D [P, J+1] in a folder, by image id; read when asked for."""

    index_name = "tables.json"
    command = "`annocoin train`"

    def read(self, path: Path) -> Tensor:
        return arrays.read_arrays(
            path, VERSION, FIELDS, _decode, what="loss tables", made="annocoin train"
        )


def write_table(path: Path, table: Tensor) -> None:
    """Write D as .npz, whole or not at all; in half precision, D is at most 12."""
    arrays.write_arrays(path, VERSION, {"table": table.cpu().numpy().astype(np.float16)})


def is_current(path: Path) -> bool:
    """Whether a file is there and of this version; its content is not looked at."""
    return arrays.is_current(path, VERSION)


def _decode(fields: Arrays) -> Tensor:
    return torch.from_numpy(fields["table"].astype(np.float32))
