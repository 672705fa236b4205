"""Any images with one label each, without code: name a folder of classes or a table, and a model.

python -m finetune image --dataset photos/ --model google/vit-base-patch16-224-in21k
python -m finetune image --dataset photos.csv --image_column file --label_column kind --model NAME
python -m finetune image --embedded            # no Hub: 5,000 digits, a small ViT, not pretrained
"""

from finetune import ImageRecipe


class Image(ImageRecipe):
    """Images of your own, with one label each."""

    training = dict(global_batch_size=32)
    embedded = dict(
        dataset="embedded:digits",
        model="embedded:vit",
        horizontal_flip=False,  # a mirrored digit is another one, or none
        crop_scale=0.7,
        learning_rate=2e-3,
        warmup_steps=0.1,
        num_train_epochs=20,
    )
