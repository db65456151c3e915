import pytest
import torch

from annocoin.engine import distribution
from annocoin.engine.distribution import open_device, warn_of_slow_bfloat16
from annocoin.errors import InputError


def test_names_of_devices() -> None:
    assert open_device("cpu") == torch.device("cpu")
    assert open_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(InputError, match="'abacus' cannot be used here"):
        open_device("abacus")


@pytest.mark.parametrize(("own", "said"), [(False, distribution.SLOW + "\n"), (True, "")])
def test_imitated_bfloat16_is_told(
    own: bool, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: own)
    warn_of_slow_bfloat16(torch.device("cpu"))
    warn_of_slow_bfloat16(torch.device("cuda"))
    assert capsys.readouterr().err == said
