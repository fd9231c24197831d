"""Loaded by Python itself where this folder is on the path: what a CPU server needs beforehand.

torchvision's Python files ask for operators that its compiled part registers, and that part was
built for another torch. Their schemas are enough; nothing calls them.
"""

import sys
from importlib.abc import MetaPathFinder

_SCHEMA = "{}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class _BeforeTorchvision(MetaPathFinder):
    library = None

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision" and self.library is None:
            import torch

            self.library = torch.library.Library("torchvision", "FRAGMENT")
            for operator in ("nms", "qnms"):
                self.library.define(_SCHEMA.format(operator))


sys.meta_path.insert(0, _BeforeTorchvision())
