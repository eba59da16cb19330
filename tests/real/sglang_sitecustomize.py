"""Copied into the SGLang environment as sitecustomize.py by install.sh.

torchvision's CUDA build cannot load its operators beside the CPU build of torch, and then fails to
import because two of them are unknown. Declaring those two just before torchvision is imported is
enough: SGLang never calls them.
"""

import importlib.abc
import sys

_libraries = []  # a torch library withdraws its declarations when it is collected


class _DeclareOperators(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                library.define(
                    f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                )
            _libraries.append(library)


sys.meta_path.insert(0, _DeclareOperators())
