"""Tiny ONNX networks with the inputs and outputs of SAM's and EfficientSAM's exports.

The encoders give their input as embedding. The decoders draw a disc around a point, and the box of
a box prompt, in the square frame of the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx.parser
from onnx import ModelProto, numpy_helper

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
ENCODERS = {
    "planes": "(float[1,3,{side},{side}] input) => (float[1,3,h,w] output) "
    "{{ output = Identity(input) }}",
    "pixels": "(float[h,w,3] input_image) => (float[1,3,h,w] image_embeddings) {{ "
    "planes = Transpose<perm=[2,0,1]>(input_image) "
    "image_embeddings = Unsqueeze(planes, first) }}",
    "fixed pixels": "(float[{rows},{side},3] input_image) => (float[1,3,h,w] image_embeddings) {{ "
    "planes = Transpose<perm=[2,0,1]>(input_image) "
    "image_embeddings = Unsqueeze(planes, first) }}",
    "efficient": "(float[1,3,h,w] batched_images) => (float[1,3,h,w] image_embeddings) "
    "{{ image_embeddings = Identity(batched_images) }}",
}
SAM = """decoder (
    float[1,3,h,w] image_embeddings, float[1,points,2] point_coords, float[1,points] point_labels,
    float[1,1,256,256] mask_input, float[1] has_mask_input, float[2] orig_im_size
) => (float[q,m,a,b] masks, float[q,m] iou_predictions, float[q,m,n,n] low_res_masks) {
    points = Identity(point_coords)
    labels = Identity(point_labels)
    %s
    low_res_masks = Identity(low)
    masks = Neg(low)
    iou_predictions = Identity(ious)
}"""
EFFICIENT_SAM = """decoder (
    float[1,3,h,w] image_embeddings, float[1,q,points,2] batched_point_coords,
    float[1,q,points] batched_point_labels, int64[2] orig_im_size
) => (float[1,q,m,a,b] output_masks, float[1,q,m] iou_predictions) {
    size = Cast<to=1>(orig_im_size)
    rows, columns = Split<axis=0>(size)
    width_height = Concat<axis=0>(columns, rows)
    per_pixel = Div(side, width_height)
    coords = Squeeze(batched_point_coords, first)
    points = Mul(coords, per_pixel)
    labels = Squeeze(batched_point_labels, first)
    %s
    shape = Shape<end=2>(low)
    sizes = Concat<axis=0>(shape, orig_im_size)
    resized = Resize<mode="linear">(low, , , sizes)
    output_masks = Unsqueeze(resized, first)
    iou_predictions = Unsqueeze(ious, first)
}"""
BODY = """
    start, end = Split<axis=1>(points)
    start_label, end_label = Split<axis=1>(labels)
    start_column = Unsqueeze(start, third)
    end_column = Unsqueeze(end, third)
    x0, y0 = Split<axis=3>(start_column)
    x1, y1 = Split<axis=3>(end_column)
    left = Sub(x, x0)
    right = Sub(x1, x)
    above = Sub(y, y0)
    below = Sub(y1, y)
    box = Min(left, right, above, below)
    xx = Mul(left, left)
    yy = Mul(above, above)
    squared = Add(xx, yy)
    distance = Sqrt(squared)
    discs = Sub(radii, distance)
    flat = Equal(end_label, box_end)
    wide = Unsqueeze(flat, third)
    is_box = Unsqueeze(wide, third)
    shapes = Where(is_box, box, discs)
    low = Mul(shapes, sharpness)
    greatest = ReduceMax<keepdims=0>(image_embeddings)
    gained = Mul(greatest, gain)
    scores_here = Add(scores, gained)
    one = Squeeze(start_label, second)
    nothing = Mul(one, zero)
    column = Unsqueeze(nothing, second)
    ious = Add(scores_here, column)
"""
"""From points [Q, 2, 2] and labels [Q, 2] to logits [Q, M, n, n] and scores [Q, M]."""


def write_encoder(path: Path, kind: str = "planes", *, side: int = 64, rows: int = 48) -> Path:
    """An encoder that gives its input, as [1, 3, H, W]."""
    graph = f"encoder {ENCODERS[kind].format(side=side, rows=rows)}"
    return _write(path, graph, {"first": np.asarray([0])} if "first" in graph else {})


def write_decoder(
    path: Path,
    *,
    efficient: bool = False,
    side: int = 64,
    resolution: int = 64,
    radii: Sequence[float] = (12.0,),
    scores: Sequence[float] = (0.9,),
    sharpness: float = 1.0,
    gain: float = 0.0,
) -> Path:
    """A decoder that draws discs around a point, or the box of a box prompt.

    Args:
        side: of the frame; radii are in its pixels.
        resolution: of the logits.
        radii: of the disc of each mask.
        scores: the predicted IoU of each mask, plus `gain` times the embedding's maximum.
        sharpness: the slope of the logits at the outline, per pixel of the frame.
    """
    centres = (np.arange(resolution) + 0.5) * side / resolution
    y, x = np.meshgrid(centres, centres, indexing="ij")
    constants = {
        "x": x[None, None], "y": y[None, None], "side": [side],
        "radii": np.reshape(radii, (1, -1, 1, 1)), "scores": np.reshape(scores, (1, -1)),
        "sharpness": sharpness, "gain": gain, "box_end": [3.0], "zero": 0.0,
    }  # fmt: skip
    arrays = {name: np.asarray(value, dtype=np.float32) for name, value in constants.items()}
    if not efficient:
        del arrays["side"]
    axes = {"second": np.asarray([1]), "third": np.asarray([2])}
    if efficient:
        axes["first"] = np.asarray([0])
    return _write(path, (EFFICIENT_SAM if efficient else SAM) % BODY, {**arrays, **axes})


def write_graph(path: Path, graph: str) -> Path:
    """A network as onnx's text format describes it."""
    return _write(path, graph, {})


def _write(path: Path, graph: str, constants: dict[str, np.ndarray]) -> Path:
    model: ModelProto = onnx.parser.parse_model(HEADER + graph)
    for name, value in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    path.write_bytes(model.SerializeToString())
    return path
