"""Reads the tensors of the measured models, and the work of each, from MXNet's model zoo."""

from __future__ import annotations

import json
from math import prod
from typing import Any

import mxnet as mx

from .models import SCALES, Model, Tensor, sockeye

ZOO = {"resnet50": ("resnet50_v1", 224), "inceptionv3": ("inceptionv3", 299), "vgg19": ("vgg19", 224)}
"""Our name -> the zoo's name, and the pixels along one side of a picture."""


def load(name: str) -> Model:
    """Return a model by its name in ``models.SCALES``."""
    return sockeye() if name == "sockeye" else _from_zoo(name)


def _from_zoo(name: str) -> Model:
    """Return the trainable parameters of a network in forward order."""
    zoo_name, side = ZOO[name]
    net = mx.gluon.model_zoo.vision.get_model(zoo_name)
    picture = (1, 3, side, side)
    net.infer_shape(mx.nd.zeros(picture))
    work = _work(net(mx.sym.var("data")), picture)
    parameters = [each for each in net.collect_params().values() if each.grad_req != "null"]
    tensors = [Tensor(prod(each.shape), work.get(each.name, 0.0)) for each in parameters]
    return Model(name, tuple(tensors), SCALES[name])


def _work(network: Any, picture: tuple[int, ...]) -> dict[str, float]:
    """Return weight -> multiplications per example, for convolutions and dense layers.

    Every element of a weight meets every place of the output once.
    """
    inner = network.get_internals()
    shapes, outputs, _ = inner.infer_shape(data=picture)
    weights = dict(zip(inner.list_arguments(), shapes))
    output_of = dict(zip(inner.list_outputs(), outputs))
    nodes = json.loads(network.tojson())["nodes"]
    work = {}
    for node in nodes:
        if node["op"] in ("Convolution", "FullyConnected"):
            weight = nodes[node["inputs"][1][0]]["name"]
            places = prod(output_of[f"{node['name']}_output"][2:])  # none in a dense layer
            work[weight] = float(prod(weights[weight]) * places)
    return work
