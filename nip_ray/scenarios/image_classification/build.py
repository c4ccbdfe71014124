"""Build an image classification scenario from settings: load and label images, find feature maps, look up agents."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from nip_ray.errors import UserError
from nip_ray.networks.images import latent_size
from nip_ray.protocols import Protocol
from nip_ray.scenarios.image_classification.embeddings import cache_folder, embeddings, find_model
from nip_ray.scenarios.image_classification.images import ImageSet, load_images, size_text
from nip_ray.scenarios.image_classification.labels import labelled, num_classes_of
from nip_ray.scenarios.image_classification.scenario import ImageClassification, LabelledImages
from nip_ray.scenarios.seat import agents_of, naming_options
from nip_ray.settings.image_classification import ImageAgentSettings, ImageClassificationSettings, ImageDataSettings


def build_image_classification(
    protocol: Protocol, settings: ImageClassificationSettings, dataset: str | None = None
) -> ImageClassification:
    """The scenario of `settings` under `protocol`. dataset: a parquet file or folder instead of the held-out ones.

    Raises UserError for unusable data or weights, or unknown agents.
    """
    agents = agents_of(protocol, settings.agents, ImageAgentSettings)
    data = image_data(settings.data)
    if dataset is not None:
        data = _examined_on(data, settings.data, dataset)
    height, width = data.images.pixels_ICHW.shape[2:]
    if min(latent_size(height, width, settings.num_block_groups)) < 1:
        most = min(height, width).bit_length() - 1
        size = size_text(data.images)
        raise UserError(
            f"scenario.num_block_groups: got {settings.num_block_groups}, but nothing would be left of {size}, use at"
            f" most {most}"
        )
    return ImageClassification(
        protocol,
        replace(data, embeddings=_embeddings(agents, data.images, settings)),
        agents,
        num_groups=settings.num_block_groups,
        **naming_options(settings),
    )


def image_data(settings: ImageDataSettings) -> LabelledImages:
    """The images of `settings`, with labels and without feature maps. Raises UserError for unusable data."""
    train, test = load_images(settings)
    count = num_classes_of(settings, train, test)
    train_K, train_label_K = labelled(train, settings, "train", count)
    test_K, test_label_K = labelled(test, settings, "test", count)
    train, test = train.select(train_K), test.select(test_K)
    both = ImageSet(
        torch.cat([train.pixels_ICHW, test.pixels_ICHW]), torch.cat([train.class_I, test.class_I]), train.levels
    )
    return LabelledImages(both, torch.cat([train_label_K, test_label_K]), len(train))


def _examined_on(own: LabelledImages, settings: ImageDataSettings, path: str) -> LabelledImages:
    """The training images of `own`, with those of the parquet file or folder `path` held out."""
    made = image_data(replace(settings, test=path, num_test=None, test_share=ImageDataSettings.test_share))
    images = own.images if own.images.levels == made.images.levels else own.images.rescaled(made.images.levels)
    train, test = images.pixels_ICHW[: own.num_train], made.images.pixels_ICHW[made.num_train :]
    if train.shape[1:] != test.shape[1:]:
        shapes = [" x ".join(map(str, pixels.shape[1:])) for pixels in (test, train)]
        raise UserError(
            f"--dataset {path}: its images have {shapes[0]} values (colours x height x width), expected {shapes[1]} as"
            " in training"
        )
    classes = torch.cat([images.class_I[: own.num_train], made.images.class_I[made.num_train :]])
    labels = torch.cat([own.label_I[: own.num_train], made.label_I[made.num_train :]])
    return LabelledImages(ImageSet(torch.cat([train, test]), classes, images.levels), labels, own.num_train)


def _embeddings(
    agents: Mapping[str, ImageAgentSettings], images: ImageSet, settings: ImageClassificationSettings
) -> dict[str, torch.Tensor]:
    found, by_model = {}, {}
    for agent, own in agents.items():
        if own.kind == "learned" and own.pretrained_weights is not None:
            model = find_model(own.pretrained_weights, own.pretrained_architecture)
            if model not in by_model:
                by_model[model] = embeddings(model, images, cache_folder(settings.embedding_cache))
            found[agent] = by_model[model]
            h, w = found[agent].shape[2:]
            height, width = images.pixels_ICHW.shape[2:]
            if (h > height and w < width) or (h < height and w > width):
                raise UserError(
                    f"{model.weights}: its feature maps are {h} x {w}, neither larger nor smaller than {height} x"
                    f" {width}"
                )
    return found
