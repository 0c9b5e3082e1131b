import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from anomalyncd.learn.features import FeatureSpace
from anomalyncd.learn.network import RegionNet, ViewBatch, last_part
from anomalyncd.model.backbone import MaskGuidedViT, tiny_vit


@pytest.fixture
def vit():
    return MaskGuidedViT(tiny_vit()).requires_grad_(False)


def token_batch(vectors=None):
    generator = torch.Generator().manual_seed(0)
    keep = torch.rand(3, 4, generator=generator) > 0.5
    return ViewBatch(vectors, torch.randn(3, 5, 48, generator=generator), keep)


def test_gradients_reach_the_last_block_and_neither_the_trunk_nor_the_final_norm(vit):
    vit.requires_grad_(True)  # whatever it was before
    vit.vit.blocks[:-1].requires_grad_(False)
    net = RegionNet(48, 3, 2, vit=vit)
    cosines, projections = net(token_batch())
    (cosines[:, :, 0].sum() + projections[:, 0].sum()).backward()
    assert {id(p) for p in net.parameters()} >= {id(p) for p in last_part(vit).parameters()}
    for name, parameter in vit.vit.named_parameters():
        if not name.startswith(("blocks.", "norm.")):
            continue
        trained = name.startswith("blocks.4.")
        assert parameter.requires_grad == trained
        assert (parameter.grad is not None and bool(parameter.grad.any())) == trained, name


def test_the_trunk_is_no_part_of_the_network(vit):
    names = RegionNet(48, 3, 2, vit=vit).state_dict()
    assert {name.split(".")[0] for name in names} == {"heads", "projector", "last"}
    assert sum(value.numel() for name, value in names.items() if name.startswith("last.")) == sum(
        p.numel() for p in last_part(vit).parameters()
    )


def test_heads_give_cosines(vit):
    net = RegionNet(6, n_outputs=4, n_heads=3)
    vectors = torch.randn(50, 6) * torch.logspace(-3, 3, 50)[:, None]
    cosines, _ = net(ViewBatch(vectors))
    assert cosines.shape == (3, 50, 4)
    assert cosines.abs().max() <= 1 + 1e-6
    expected = F.cosine_similarity(vectors[7], net.heads.directions[1, 2], dim=0)
    assert cosines[1, 7, 2].item() == pytest.approx(expected.item(), abs=1e-5)


def test_start_from_points_one_head_at_the_centres():
    net = RegionNet(4, n_outputs=3, n_heads=2)
    before = net.heads.weight.clone()
    net.heads.start_from(1, 5 * torch.eye(4)[:3])
    cosines, _ = net(ViewBatch(torch.eye(4)[:3] * 7))
    torch.testing.assert_close(cosines[1], torch.eye(3))
    assert torch.equal(net.heads.weight[0], before[0])


def test_heads_begin_and_turn_as_weight_normalised_linear_layers_do():
    torch.manual_seed(0)
    layer = nn.Linear(384, 50, bias=False)
    net = RegionNet(384, n_outputs=50, n_heads=1, contrastive=False)
    lengths = net.heads.directions.detach().norm(dim=-1)
    assert lengths.std() < 1e-6 and lengths.mean().item() == pytest.approx(
        layer.weight.norm(dim=1).mean().item(), rel=0.01
    )
    normed = nn.utils.parametrizations.weight_norm(layer)
    length, direction = normed.parametrizations.weight.parameters()
    length.data.fill_(1).requires_grad_(False)
    direction.data.copy_(net.heads.directions[0])
    vectors, target = F.normalize(torch.randn(30, 384), dim=1), torch.arange(30)
    for cosines, parameter in ((net(ViewBatch(vectors))[0][0], net.heads.directions), (normed(vectors), direction)):
        F.cross_entropy(cosines / 0.1, target).backward()
        torch.optim.SGD([parameter], lr=0.1).step()
    torch.testing.assert_close(net.heads.directions[0], direction, atol=1e-6, rtol=1e-5)
    net.heads.start_from(0, torch.randn(50, 384))
    torch.testing.assert_close(net.heads.directions.norm(dim=-1), torch.ones(1, 50))


def test_without_contrast_there_is_no_projector():
    net = RegionNet(4, 3, 1, contrastive=False)
    vectors = torch.tensor([[3.0, 4, 0, 0]])
    assert net.projector is None
    torch.testing.assert_close(net(ViewBatch(vectors))[1], vectors / 5)
    assert RegionNet(4, 3, 1)(ViewBatch(vectors))[1].shape == (1, 256)


def test_training_sees_the_features_that_prediction_uses(vit):
    """Class token and frozen vectors are joined as FeatureSpace does it: same order, weights and lengths."""
    space = FeatureSpace({"class_token": 0.7, "patches": 1.5})
    patches = np.random.default_rng(0).standard_normal((3, 1, 2, 48)).astype(np.float32)
    space.fit({"patches": patches})
    vectors = torch.from_numpy(space.join({"patches": patches})[:, 0])
    batch = token_batch(vectors)
    with torch.no_grad():
        trained = RegionNet(144, 3, 1, vit=vit, class_weight=0.7).features(batch)
        tokens = F.normalize(vit.class_token(batch.tokens, batch.keep), dim=-1).numpy()
    np.testing.assert_allclose(
        trained, space.transform({"class_token": tokens[:, None, None], "patches": patches}), atol=1e-5
    )


def test_the_projector_tells_much_alike_crops_apart_from_the_start(vit):
    """Products look alike: a bias, or a token scaled to length 1, would outweigh their differences."""
    net = RegionNet(48, 5, 1, vit=vit)
    generator = torch.Generator().manual_seed(0)
    alike = torch.randn(1, 5, 48, generator=generator) + 0.3 * torch.randn(8, 5, 48, generator=generator)
    batch = ViewBatch(None, alike, torch.ones(8, 4, dtype=torch.bool))
    with torch.no_grad():
        features, projected = net.features(batch), F.normalize(net(batch)[1], dim=1)
    apart = [1 - float((x @ x.T).min()) for x in (features, projected)]
    assert apart[1] > apart[0] / 2
