"""decoding_params.py: one copy for all engines of a model, while one works."""

from atgrpo_jax.sampling import decoding_params
from atgrpo_jax.sampling import engine as engine_lib
from atgrpo_jax.sampling import programs
from tests.rl import tiny
from tests.rollout import scripted
from tests.sampling import engine_test


def test_engines_of_one_model_share_one_copy(monkeypatch):
  made, original = [], programs.prepare

  def prepare(*args, **kwargs):
    made.append(original(*args, **kwargs))
    return made[-1]

  monkeypatch.setattr(programs, 'prepare', prepare)
  params = decoding_params.DecodingParams(
      tiny.make_params(), scripted.one_device(), engine_test.CONFIG, 'float32')
  engines = [
      engine_lib.Engine(
          params, adapters=None, spec=engine_test.SPEC, num_slots=(8,),
          prompt_length=length) for length in (7, 8)]
  for rounds in (1, 2):  # Once idle, both are without; then it is made anew.
    for engine, request in zip(engines, engine_test.make_requests(2)):
      engine.add(request)
    engine_lib.drain(engines)
    assert len(made) == rounds
  assert params.acquire() == (made[2], params.acquire()[1])
