"""Loaded by Python itself where this folder is on the path: what a CPU server needs beforehand.

torchvision's Python files ask for operators that its compiled part registers, and that part was
built for another torch. Their schemas are enough; nothing calls them.

SGLang seeds its sampling only in its deterministic mode, which it does not offer on a CPU, for lack
of kernels whose sums do not depend on the batch. Without them tokens may differ where rounding
decides; the noise is the real one.
"""

import sys
from importlib.abc import MetaPathFinder

_SCHEMA = "{}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class _Before(MetaPathFinder):
    def __init__(self):
        self.to_do = {"torchvision": self.torchvision, "sglang.srt.server_args": self.deterministic}

    def find_spec(self, name, path=None, target=None):
        if prepare := self.to_do.pop(name, None):
            prepare()

    def torchvision(self):
        import torch

        self.library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            self.library.define(_SCHEMA.format(operator))

    def deterministic(self):
        from sglang.srt import batch_invariant_ops
        from sglang.srt.arg_groups import choices

        choices.DETERMINISTIC_ATTENTION_BACKEND_CHOICES.append("torch_native")
        batch_invariant_ops.enable_batch_invariant_mode = lambda enable_bmm=True: None


sys.meta_path.insert(0, _Before())
