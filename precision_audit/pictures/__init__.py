"""Pictures of what training does to numbers and of what a search found, as SVG or PNG; `PICTURES` lists them.

A picture takes numbers (records, sequences of floats) and a path; it writes the file and gives back the path. It must
never run a model, read a clock or change matplotlib's settings: the same numbers give the same bytes. matplotlib is an
optional package, imported when a picture is drawn, never before.

To add a picture, add a file and a row.
"""

from __future__ import annotations

from precision_audit.pictures.frontier import frontier
from precision_audit.pictures.gradient_histogram import gradient_histogram
from precision_audit.pictures.training_curves import training_curves
from precision_audit.pictures.underflow_and_scale import underflow_and_scale

PICTURES = {
    "frontier": frontier,
    "gradient_histogram": gradient_histogram,
    "training_curves": training_curves,
    "underflow_and_scale": underflow_and_scale,
}

__all__ = ["PICTURES", "frontier", "gradient_histogram", "training_curves", "underflow_and_scale"]
