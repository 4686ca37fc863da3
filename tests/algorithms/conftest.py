"""Scripted policies for all tests of this folder."""

import pytest

from tests.rollout import scripted


@pytest.fixture(autouse=True)
def follow_scripts(monkeypatch):
  scripted.follow_scripts(monkeypatch)
