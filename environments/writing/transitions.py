"""Lists of transition words and stop words.

The categories are MAGRPO's (arXiv 2508.04652). The lists are ours: about as
long as the released ones, but not copied, so values of coherence differ
slightly from the paper's. An entry is a word or a phrase in lower case. It must
start and end at word boundaries, and any blanks separate the words of a phrase.
The released code matches anywhere, so it finds 'so' in 'also'.
"""

import re

# Category -> entries. No entry is in two categories, but entries may overlap:
# 'even so' also belongs to the category of 'so'.
CATEGORIES = {
    'elaboration': (
        'also', 'furthermore', 'moreover', 'besides', 'additionally',
        'in addition', 'further', 'what is more', 'too', 'as well',
        'not only', 'along with', 'equally important', 'to elaborate',
        'on top of that', 'apart from this', 'beyond that', 'to add',
        'plus', 'added to this', 'more precisely'),
    'examples': (
        'for example', 'for instance', 'such as', 'e.g.', 'including',
        'in particular', 'particularly', 'especially', 'notably', 'namely',
        'specifically', 'to illustrate', 'as an example', 'as an illustration',
        'a case in point', 'one example', 'another example', 'among them',
        'among others', 'to name a few', 'take the case of', 'as shown by'),
    'explanation': (
        'that is', 'i.e.', 'in other words', 'put differently', 'to clarify',
        'to explain', 'put simply', 'simply put', 'to be precise',
        'as this shows', 'which means', 'this means', 'meaning that',
        'in simpler terms', 'in plain words', 'to be exact', 'the reason is',
        'put another way', 'stated differently', 'essentially', 'in essence',
        'basically'),
    'cause_effect': (
        'because', 'so', 'therefore', 'thus', 'hence', 'consequently',
        'as a result', 'as a consequence', 'accordingly', 'due to', 'owing to',
        'thanks to', 'for this reason', 'for that reason', 'this is why',
        'leads to', 'led to', 'leading to', 'results in', 'resulted in',
        'resulting in', 'thereby', 'it follows that', 'given that',
        'stems from', 'on account of'),
    'contrast': (
        'but', 'however', 'whereas', 'yet', 'in contrast', 'by contrast',
        'on the other hand', 'on the contrary', 'conversely', 'instead',
        'rather', 'unlike', 'otherwise', 'differently', 'as opposed to',
        'opposed to', 'while others', 'in opposition', 'contrary to',
        'alternatively', 'rather than', 'instead of', 'not so much', 'versus',
        'except', 'except for', 'then again', 'at odds with',
        'different from'),
    'sequence': (
        'first', 'firstly', 'second', 'secondly', 'third', 'thirdly', 'fourth',
        'next', 'then', 'last', 'lastly', 'finally', 'to begin with',
        'to start with', 'first of all', 'in the first place', 'afterwards',
        'following this', 'subsequently', 'in turn', 'step by step',
        'one after another', 'at first', 'in the beginning', 'at the end',
        'in the end', 'initially', 'eventually', 'at last', 'from there',
        'to finish', 'ultimately', 'in order'),
    'emphasis': (
        'indeed', 'in fact', 'of course', 'certainly', 'clearly', 'obviously',
        'above all', 'surely', 'undoubtedly', 'without doubt', 'no doubt',
        'definitely', 'truly', 'most importantly', 'importantly',
        'significantly', 'as a matter of fact', 'needless to say',
        'absolutely', 'undeniably', 'evidently', 'to be sure', 'by all means',
        'it must be said'),
    'summary': (
        'in summary', 'to summarize', 'in short', 'in brief', 'briefly',
        'overall', 'in conclusion', 'to conclude', 'to sum up', 'summing up',
        'all in all', 'on the whole', 'altogether', 'in sum', 'in total',
        'in a word', 'in a nutshell', 'to recap', 'in closing',
        'all things considered', 'by and large'),
    'comparison': (
        'similarly', 'likewise', 'in the same way', 'just as', 'equally',
        'in comparison', 'by comparison', 'compared to', 'compared with',
        'as with', 'in like manner', 'similar to', 'just like', 'like this',
        'in the same vein', 'comparable to', 'correspondingly'),
    'concession': (
        'although', 'though', 'even though', 'even so', 'nevertheless',
        'nonetheless', 'despite', 'in spite of', 'regardless', 'granted',
        'admittedly', 'all the same', 'notwithstanding', 'be that as it may',
        'albeit', 'anyway', 'at any rate', 'still', 'in any case'),
    'condition': (
        'if', 'unless', 'provided that', 'providing that', 'in case',
        'in that case', 'as long as', 'only if', 'whether', 'assuming',
        'assuming that', 'on condition that', 'depending on', 'suppose',
        'supposing', 'in the event of', 'as far as', 'or else',
        'in which case'),
    'time': (
        'when', 'while', 'before', 'after', 'since', 'until', 'during',
        'meanwhile', 'in the meantime', 'later', 'earlier', 'soon',
        'previously', 'formerly', 'currently', 'nowadays', 'recently',
        'at the same time', 'simultaneously', 'once', 'by then', 'whenever',
        'as soon as', 'these days', 'from now on', 'so far'),
}

STOP_WORDS = frozenset("""
    a an the this that these those it its he him his she her they them their we
    us our you your i me my who which what am is are was were be been being do
    does did have has had having will would shall should can could may might
    must and or nor but if so as than then of at by for with about into through
    before after above below to from up down in out on off over under again once
    here there when where why how all any both each few more most some such no
    not only own same too very just now one
    """.split())

_PATTERNS = {
    category: re.compile(
        r'(?<!\w)(?:' + '|'.join(
            re.escape(entry).replace(r'\ ', r'\s+') for entry in entries)
        + r')(?!\w)')
    for category, entries in CATEGORIES.items()}


def find_categories(text: str) -> frozenset[str]:
  """Categories with an entry in the text."""
  text = text.lower()
  return frozenset(
      name for name, pattern in _PATTERNS.items() if pattern.search(text))
