"""The expert, a server of this test: what it is asked, and what it fails with.

No program is run: the sandbox is not asked when main is not there.
"""

import http.server
import json
import pickle
import threading
import time

import pytest

from environments import env_api
from environments.programming.functions import env as functions
from environments.programming.functions import expert as expert_lib
from tests.environments.programming import examples

AUX = 'def aux(x, y):\n  return x + y'
GOOD = json.dumps({'aux': ['Add a type.'], 'main': ['Call aux.', 'Return.']})


class Server:
  """Answers one after another; the last one stays."""

  def __init__(self):
    self.answers, self.asked, self.headers = [], [], []
    server = self

    class Handler(http.server.BaseHTTPRequestHandler):
      def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
        server.asked.append((self.path, json.loads(body)))
        server.headers.append(dict(self.headers))
        answer = server.answers.pop(0)
        server.answers = server.answers or [answer]
        if answer is None:  # Never.
          time.sleep(1.0)
          return
        status, text = answer
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

      def log_message(self, *args):
        pass

    self._http = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    self.url = f'http://127.0.0.1:{self._http.server_port}/v1'
    threading.Thread(target=self._http.serve_forever, daemon=True).start()

  def close(self):
    self._http.shutdown()
    self._http.server_close()


def said(content):
  return 200, json.dumps({'choices': [{'message': {'content': content}}]})


@pytest.fixture
def server(monkeypatch):
  monkeypatch.setattr(expert_lib, '_PAUSE_SECONDS', 0.0)
  found = Server()
  yield found
  found.close()


def make(server, **options):
  return functions.make_environment(
      team='pair', max_turns=2, reward='outcome', sandbox='never asked',
      feedback_mode='expert_edits', expert_url=server.url,
      expert_model='reviewer', **options)


def step(environment, state=None):
  return environment.step(
      state or functions.State(examples.make_check()),
      {'aux': AUX, 'main': 'I do not know.'})


def told(result, role):
  return next(
      exchange.feedback for exchange in result.state.exchanges
      if exchange.role == role)


def test_what_is_asked_and_told(server, monkeypatch):
  monkeypatch.setenv('MY_KEY', 'secret')
  server.answers = [said(f'Here it is:\n```json\n{GOOD}\n```')]
  environment = make(server, expert_key_variable='MY_KEY')
  assert pickle.loads(pickle.dumps(environment)) == environment
  first = step(environment)
  (path, asked), = server.asked
  assert path == '/v1/chat/completions'
  assert (asked['model'], asked['temperature'], asked['max_tokens']) == (
      'reviewer', 0.3, 2048)
  text = asked['messages'][0]['content']
  assert examples.STUB in text and AUX in text and 'main wrote:\n(nothing)' in (
      text)
  assert server.headers[0]['Authorization'] == 'Bearer secret'
  assert told(first, 'aux') == (
      'A reviewer suggests:\n- Add a type.\n'
      'Revise your function aux. Answer with its code alone.')
  assert '- Call aux.\n- Return.\n' in told(first, 'main')
  assert 'Add a type.' not in told(first, 'main')
  assert first.reward_terms['edits'] == 3
  # Nobody reads what would come after the last turn.
  last = step(environment, first.state)
  assert last.done and len(server.asked) == 1
  assert last.reward_terms['edits'] == 0
  assert first.reward_terms.keys() == last.reward_terms.keys()


def test_the_third_attempt_may_do(server):
  server.answers = [
      (500, 'overloaded'), said('I would rather not.'), said(GOOD)]
  assert step(make(server)).reward_terms['edits'] == 3
  assert len(server.asked) == 3
  assert 'Authorization' not in server.headers[0]


@pytest.mark.parametrize('content', [
    None, '', 'no JSON', '[]', '{"aux": "text"}', '{"aux": [1]}',
    '{"main": [null]}', '[' * 100_000])
def test_a_review_without_edits(content, server):
  server.answers = [said(content)]
  result = step(make(server))
  assert len(server.asked) == 3
  assert result.outcomes['aux'] is env_api.Outcome.OK
  assert result.reward_terms['edits'] == 0
  assert 'suggests no edits' in told(result, 'aux')


@pytest.mark.parametrize('answer', [
    (500, 'overloaded'), (200, 'no JSON'), (200, '{"choices": []}'), None])
def test_no_answer_is_no_fault_of_the_team(answer, server, monkeypatch, caplog):
  server.answers = [answer]
  environment = make(server)
  object.__setattr__(environment.expert, 'seconds', 0.1)
  result = step(environment)
  assert set(result.outcomes.values()) == {env_api.Outcome.INFRASTRUCTURE}
  assert len(server.asked) == 3
  assert caplog.text.count(f'The expert at {server.url}') == 3


def test_long_edits_are_cut(server):
  server.answers = [said(json.dumps({'aux': ['x' * 10_000] * 50}))]
  result = step(make(server))
  assert result.reward_terms['edits'] == 10
  assert len(told(result, 'aux')) < 7000


@pytest.mark.parametrize('options, words', [
    ({'feedback_mode': 'expert_edits'}, 'give both'),
    ({'feedback_mode': 'expert_edits', 'expert_url': 'localhost:1',
      'expert_model': 'm'}, 'give both'),
    ({'expert_model': 'm'}, 'asks no expert'),
    ({'feedback_mode': 'expert_edits', 'expert_url': 'http://x/v1',
      'expert_model': 'm', 'expert_key_variable': 'NO_SUCH_KEY'},
     'no such environment variable')])
def test_options_that_cannot_be_used(options, words):
  with pytest.raises(ValueError, match=words):
    functions.make_environment(
        team='pair', max_turns=2, reward='outcome', sandbox=None, **options)
