"""The messages of mneme/v1/inference.proto."""

from mneme.v1.descriptors import namespace

globals().update(namespace("mneme/v1/inference.proto"))
