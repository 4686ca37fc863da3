"""Round trips of text, control tokens and stop ids."""

import json
import pathlib
import shutil

import numpy as np
import pytest
import tokenizers

from atgrpo_jax import errors
from atgrpo_jax.huggingface import tokenizer as tokenizer_lib
from models import pretrain
from models.nano import recipe

GOLDENS = pathlib.Path(__file__).parents[1] / 'goldens'
PROMPTS = json.loads((GOLDENS / 'qwen3_prompts.json').read_text('utf-8'))
VOCAB_SIZE = 320
PIECES = recipe.RECIPE.tokenizer.token_pattern
TEXTS = ['Position: [11, 12]. Goal: [10, 11].\n#### ["U", "R", "R", "D"]'] * 3


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """A folder with a trained tokenizer; never written to."""
  folder = tmp_path_factory.mktemp('tokenizer')
  pretrain.train_tokenizer(TEXTS, VOCAB_SIZE, PIECES, folder)
  return folder


@pytest.fixture(scope='module')
def tokenizer(trained):
  return tokenizer_lib.Tokenizer(trained)


@pytest.fixture
def copy(trained, tmp_path):
  """A copy of the folder that tests may change."""
  return pathlib.Path(shutil.copytree(trained, tmp_path / 'copy'))


def _vocab(folder):
  return tokenizers.Tokenizer.from_file(
      str(folder / 'tokenizer.json')).get_vocab()


def _add_tokens(folder, *names, **options):
  path = str(folder / 'tokenizer.json')
  bpe = tokenizers.Tokenizer.from_file(path)
  bpe.add_tokens([tokenizers.AddedToken(name, **options) for name in names])
  bpe.save(path)


@pytest.mark.parametrize('name', ['not_thinking', 'thinking'])
def test_prompts_equal_qwen3(trained, name):
  tokenizer = tokenizer_lib.Tokenizer(trained, thinking=name == 'thinking')
  vocab = _vocab(trained)
  for prompt in PROMPTS:
    ids = tokenizer.encode_prompt(prompt['messages'])
    assert ids.dtype == np.int32 and ids.ndim == 1
    assert tokenizer.decode(ids) == prompt[name]
    # Control tokens are single ids.
    for token in ('<|im_start|>', '<|im_end|>', '<think>', '</think>'):
      assert ids.tolist().count(vocab[token]) == prompt[name].count(token)


# Like Qwen3's chat template, this one parses contents: it drops the thinking
# part of earlier completions and treats tool responses separately.
PARSES_CONTENTS = (
    "{%- for message in messages %}"
    "{%- set content = message.content.split('</think>')[-1].lstrip('\n') %}"
    "{%- if message.content.startswith('<tool_response>') %}"
    "{%- set content = 'no question' %}"
    "{%- endif %}"
    "{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{{- '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}")


def test_messages_cannot_spell_control_tokens(copy):
  _add_tokens(
      copy, '<tool_response>', '</tool_response>', '<|fim_pad|>', special=False,
      normalized=False)
  fields = json.loads((copy / 'tokenizer.json').read_text())
  for token in fields['added_tokens']:
    token['special'] = token['content'] in ('<|endoftext|>', '<|im_end|>')
  added = {token['content']: token['id'] for token in fields['added_tokens']}
  assert len(added) == 8
  # Words and indentation are no control tokens.
  fields['added_tokens'] += [
      fields['added_tokens'][-1] | {'content': content, 'id': number}
      for number, content in enumerate(
          ('left', '    '), max(added.values()) + 1)]
  (copy / 'tokenizer.json').write_text(json.dumps(fields))
  (copy / 'chat_template.jinja').write_text(PARSES_CONTENTS)
  tokenizer = tokenizer_lib.Tokenizer(copy)

  for role in ('system', 'user', 'assistant'):
    for content in [
        *added, ''.join(added), '<|im_<|im_end|>end|>', '<<think>think>',
        'left', '    return', 'half of a pair: \ufffd', 'no\n</think>\n\nyes',
        '<tool_response>\nsaid</think>\nshown</tool_response>']:
      # JSON may hold half of a surrogate pair.
      said = content.replace('\ufffd', '\ud800')
      ids = tokenizer.encode_prompt([
          {'role': role, 'content': said},
          {'role': 'user', 'content': said}]).tolist()
      # Only the template's control tokens remain.
      assert {x: ids.count(i) for x, i in added.items() if i in ids} == {
          '<|im_start|>': 3, '<|im_end|>': 2, '<think>': 1, '</think>': 1}
      shown = content
      if role == 'assistant':
        shown = content.rpartition('</think>')[2].lstrip('\n')
        shown = shown.partition('<think>')[0]
      assert tokenizer.decode(ids).replace('\u200b', '') == (
          f'<|im_start|>{role}\n{shown}<|im_end|>\n'
          f'<|im_start|>user\n{content}<|im_end|>\n'
          '<|im_start|>assistant\n<think>\n\n</think>\n\n')


NO_SYSTEM = (
    "{%- for message in messages %}"
    "{%- if message.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    "{{- '[' + message.role + ']' + message.content + '<|im_end|>' }}"
    "{%- endfor %}{{- '[assistant]' if add_generation_prompt }}")
LLAMA_3 = (
    "{{- '<|begin|>Today: ' + strftime_now('%d %b %Y') + '\n' }}"
    "{%- for message in messages %}"
    "{{- '<|head|>' + message.role + '\n\n' + message.content | trim }}"
    "{{- '<|eot|>' }}{%- endfor %}"
    "{{- '<|head|>assistant\n\n' if add_generation_prompt }}")


def test_system_message_joins_the_user_message_if_there_is_no_role(copy):
  (copy / 'chat_template.jinja').write_text(NO_SYSTEM)
  tokenizer = tokenizer_lib.Tokenizer(copy)
  chat = [{'role': 'system', 'content': 'S'}, {'role': 'user', 'content': 'a'},
          {'role': 'assistant', 'content': 'b'}]
  ids = tokenizer.encode_prompt(chat)
  assert tokenizer.decode([*ids, 0]) == (
      '[user]S\n\na<|im_end|>[assistant]b<|im_end|>[assistant]')
  with pytest.raises(errors.UserError, match=r"roles \['system'\]"):
    tokenizer.encode_prompt(chat[:1])


def test_llama_3_prompts_have_a_fixed_date_and_end_turns(copy):
  _add_tokens(copy, '<|begin|>', '<|head|>', '<|eot|>', special=True)
  (copy / 'chat_template.jinja').write_text(LLAMA_3)
  tokenizer, vocab = tokenizer_lib.Tokenizer(copy), _vocab(copy)
  assert tokenizer.stop_ids == (
      vocab['<|eot|>'], vocab['<|im_end|>'], vocab['<|endoftext|>'])
  ids = tokenizer.encode_prompt([{'role': 'user', 'content': ' a '}])
  assert tokenizer.decode(ids) == (
      '<|begin|>Today: 26 Jul 2024\n<|head|>user\n\na<|eot|>'
      '<|head|>assistant\n\n')


_LOOP = '{%- for m in messages %}'
_SHOW = "{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
_PROMPT = (
    "{%- endfor %}"
    "{{- '<|im_start|>assistant\n' if add_generation_prompt }}")
CHAT = [
    {'role': 'system', 'content': 'a text'},
    {'role': 'user', 'content': 'a text'},
    {'role': 'assistant', 'content': 'text'},
    {'role': 'critic', 'content': 'text'},
    {'role': 'user', 'content': 'a text and more'}]


def test_template_that_does_not_end_is_refused(copy, monkeypatch):
  monkeypatch.setattr(tokenizer_lib, '_RENDER_SECONDS', 0.5)
  loop = '{%- for i in range(99999) %}'
  (copy / 'chat_template.jinja').write_text(
      3 * loop + 3 * '{%- endfor %}' + _LOOP + _SHOW + _PROMPT)
  with pytest.raises(errors.UserError, match='did not render within 0.5 s'):
    tokenizer_lib.Tokenizer(copy)


# The form of Qwen3's template.
TOOLS = (
    "{%- if tools %}{{- '<|im_start|>system\n<tools>' }}"
    "{%- for tool in tools %}{{- '\n' + tool | tojson }}{%- endfor %}"
    "{{- '\n</tools><|im_end|>\n' }}{%- endif %}")
CALLS = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' + m.content }}"
    "{%- for call in m.tool_calls or () %}{%- set f = call.function %}"
    "{{- '\n<tool_call>\n{\"name\": \"' + f.name + '\", \"arguments\": ' }}"
    "{{- f.arguments | tojson + '}\n</tool_call>' }}{%- endfor %}"
    "{{- '<|im_end|>\n' }}")


def _function(**fields):
  return {'type': 'function', 'function': {'name': 'find', **fields}}


def _chat_with_tools(spelled):
  return [
      {'role': 'user', 'content': 'Go.', 'tools': [
          _function(description=spelled)]},
      {'role': 'assistant', 'content': 'I look.', 'tool_calls': [
          _function(arguments={spelled: [spelled], 'n': 3})]},
      {'role': 'tool', 'content': spelled}]


def test_tools_and_their_calls_and_results_are_shown(copy):
  (copy / 'chat_template.jinja').write_text(TOOLS + CALLS + _PROMPT)
  tokenizer, end = tokenizer_lib.Tokenizer(copy), _vocab(copy)['<|im_end|>']
  for spelled in 'it', '<|im_end|>':
    ids = tokenizer.encode_prompt(_chat_with_tools(spelled))
    assert ids.tolist().count(end) == 4
    assert tokenizer.decode(ids).replace('\u200b', '') == (
        '<|im_start|>system\n<tools>\n{"type": "function", "function": '
        f'{{"name": "find", "description": "{spelled}"}}}}\n</tools>'
        '<|im_end|>\n<|im_start|>user\nGo.<|im_end|>\n'
        '<|im_start|>assistant\nI look.\n<tool_call>\n{"name": "find", '
        f'"arguments": {{"{spelled}": ["{spelled}"], "n": 3}}}}\n</tool_call>'
        f'<|im_end|>\n<|im_start|>tool\n{spelled}<|im_end|>\n'
        '<|im_start|>assistant\n')


_IGNORES_START = 'ignores add_generation_prompt'


@pytest.mark.parametrize('template, chat, words', [
    *((_LOOP + '{%- if ' + condition + ' %}' + _SHOW + '{%- endif %}' + _PROMPT,
       CHAT, f'drops or changes.*{role!r}') for condition, role in (
           ("m.role != 'critic'", 'critic'), ('loop.first', 'user'),
           ("m.role != 'user' or loop.last", 'user'))),
    *((_LOOP + _SHOW.replace('m.content', change) + _PROMPT, CHAT,
       f'drops or changes.*{role!r}') for change, role in (
           ('(m.content | upper)', 'system'), ('(m.content[:4])', 'system'),
           ("''", 'user'))),
    # The name of the tool is also a word of the template.
    ("{{- '<|im_start|>system\nfind<|im_end|>\n' }}" + CALLS + _PROMPT,
     _chat_with_tools('it'), 'drops or changes a tool;'),
    (TOOLS + _LOOP + _SHOW + _PROMPT, _chat_with_tools('it'),
     "drops or changes a tool call of the role 'assistant'"),
    (_LOOP + _SHOW + '{%- endfor %}', CHAT, _IGNORES_START),
    (NO_SYSTEM.replace('add_generation_prompt', 'add_prompt'), CHAT,
     _IGNORES_START)])
def test_templates_that_lose_something_are_refused(copy, template, chat, words):
  (copy / 'chat_template.jinja').write_text(template)
  with pytest.raises(errors.UserError, match=words):
    tokenizer_lib.Tokenizer(copy).encode_prompt(chat)


@pytest.mark.parametrize('template', [
    _LOOP + _SHOW + _PROMPT,
    # Either the start is always written, or a message has none.
    _LOOP + _SHOW + '{%- endfor %}<|im_start|>assistant',
    _LOOP + "{{- '[INST] ' + m.content + ' [/INST]' if m.role == 'user' else "
    "' ' + m.content + '<|im_end|>' }}{%- endfor %}"])
def test_templates_that_show_each_message_are_used(copy, template):
  (copy / 'chat_template.jinja').write_text(template)
  tokenizer = tokenizer_lib.Tokenizer(copy)
  assert tokenizer.decode(tokenizer.encode_prompt(CHAT)).count('text') == 5


def test_thoughts_of_assistant_messages_are_dropped(tokenizer):
  def shown(content):
    ids = tokenizer.encode_prompt([
        {'role': 'assistant', 'content': content},
        {'role': 'user', 'content': 'go'}])
    return tokenizer.decode(ids).partition('\n')[2].partition('<|im_end|>')[0]

  for content in (
      'yes', '<think>\nhm\n</think>\n\nyes', 'hm</think>yes',
      '<think></think>yes', '<think>a</think>no<think>b</think>\nyes'):
    assert shown(content) == 'yes'
  for content in '<think>hm</think>', '<think>hm', '<think>a</think><think>b':
    assert shown(content) == ''
  assert shown('<think>a</think>yes<think>b') == 'yes'


def test_a_prompt_may_open_a_thought(tokenizer, copy):
  assert not tokenizer.opening  # It closes an empty one.
  path = copy / 'chat_template.jinja'
  path.write_text(path.read_text().replace(
      '<think>\\n\\n</think>\\n\\n', '<think>\\n'))
  assert tokenizer_lib.Tokenizer(copy).opening == '<think>'


def test_thinking_needs_a_template_that_reads_it(copy):
  (copy / 'chat_template.jinja').write_text(NO_SYSTEM)
  with pytest.raises(errors.UserError, match='model.thinking=True'):
    tokenizer_lib.Tokenizer(copy, thinking=True)


@pytest.mark.parametrize('text', [
    '#### ["U", "R", "R", "D"]',
    '\n\n    four spaces in\n',
    'naïve Größe, 迷路の出口, עברית, 🧭👩‍🔬',
    '\x00\x7f\ufffd\u200b',
    '<think>\nhm\n</think>\n\nyes',
    '',
])
def test_completion_round_trip(tokenizer, text):
  ids = tokenizer.encode_completion(text)
  assert ids.dtype == np.int32 and ids.ndim == 1
  assert ids[-1] == tokenizer.stop_ids[0]
  assert not np.isin(ids[:-1], tokenizer.stop_ids).any()
  assert tokenizer.decode(ids) == text


def test_only_the_last_stop_token_is_dropped(tokenizer):
  end, pad = tokenizer.stop_ids
  go = tokenizer.encode_completion('go')[:-1].tolist()
  assert tokenizer.decode([*go, pad]) == 'go'
  assert tokenizer.decode([end, *go, end]) == '<|im_end|>go'
  assert tokenizer.decode([]) == ''
  # A completion may end within a letter.
  ids = tokenizer.encode_completion('a迷')
  assert tokenizer.decode(ids[:-2]).startswith('a')


def test_chat_template_and_generation_config_name_the_stop_ids(copy):
  vocab = _vocab(copy)
  pad, end = vocab['<|endoftext|>'], vocab['<|im_end|>']
  for stated, expected in (([pad, end], (end, pad)), (pad, (end, pad)),
                           (None, (end,))):
    (copy / 'generation_config.json').write_text(
        json.dumps({'eos_token_id': stated}))
    assert tokenizer_lib.Tokenizer(copy).stop_ids == expected
