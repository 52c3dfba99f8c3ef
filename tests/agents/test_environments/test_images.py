"""Pictures for people."""

import io

import numpy as np
import pytest
from echoic.agents.environments.images import COLORS, above, beside, draw_grid, png
from echoic.errors import ArgumentError


def test_a_png_reads_back_as_it_was():
    image = pytest.importorskip("PIL.Image")
    picture = draw_grid(np.arange(10).reshape(2, 5), cell=5)
    with image.open(io.BytesIO(png(picture))) as read:
        np.testing.assert_array_equal(np.asarray(read), picture)


def test_cells_have_their_colours():
    picture = draw_grid([[0, 1], [2, 3]], cell=6)
    assert picture[3, 3].tolist() == COLORS[0].tolist()
    assert picture[3, 9].tolist() == COLORS[1].tolist()
    assert picture[9, 3].tolist() == COLORS[2].tolist()


def test_pictures_of_different_sizes_are_put_together():
    small, large = draw_grid([[1]], cell=4), draw_grid([[1, 2], [3, 4]], cell=4)
    assert beside([small, large], gap=2).shape == (9, 5 + 2 + 9 + 2, 3)
    assert above([small, large], gap=2).shape == (5 + 2 + 9 + 2, 9, 3)


@pytest.mark.parametrize("grid", [[], [[]], [[10]], [[-1]], [0, 1]])
def test_what_is_no_grid_is_refused(grid):
    with pytest.raises(ArgumentError, match="a grid has rows"):
        draw_grid(grid)
