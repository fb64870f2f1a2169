"""The messages of mneme/v1/memory.proto."""

from mneme.v1.descriptors import namespace

globals().update(namespace("mneme/v1/memory.proto"))
