"""Predict a directory of Parquet files with Ray Data: each worker loads the model once.

    pip install 'trainer-recipes[onnx,ray]'
    python examples/ray_predict.py runs/yelp/export reviews/ predicted/ --workers 8

The output has all rows and columns of the input, and the columns that ``predict`` adds. On a
cluster, submit it with ``ray job submit``; all nodes must see the three directories.
"""

import argparse
import os

import pyarrow as pa
import ray

from finetune import Predictor

#: Of a model that labels words: the entities of a text.
ENTITIES = pa.list_(
    pa.struct(
        [
            ("start", pa.int64()),
            ("end", pa.int64()),
            ("label", pa.string()),
            ("probability", pa.float64()),
        ]
    )
)


class AddPredictions:
    """Adds predictions to a batch of rows; one instance per worker."""

    def __init__(self, source: str) -> None:
        self.predictor = Predictor(source)
        is_list = self.predictor.task == "multi_label"
        label_type = pa.list_(pa.string()) if is_list else pa.string()
        self.types = {"label": label_type, "entities": ENTITIES}

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Return the batch with the columns of the predictions."""
        predictions = self.predictor(batch.to_pandas())
        for column, values in predictions.items():
            # given, so that a batch without a single text has the types of the others
            column_type = self.types.get(column, pa.float64())
            while column in batch.column_names:  # as `predict` does
                column = f"predicted {column}"
            batch = batch.append_column(
                column, pa.array(values.astype(object), column_type, from_pandas=True)
            )
        return batch


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", help="a run or an export")
    parser.add_argument("input", help="a directory of Parquet files")
    parser.add_argument("output", help="a new directory")
    parser.add_argument("--workers", type=int, default=1, help="processes that predict")
    parser.add_argument("--rows", type=int, default=65_536, help="of each file of the output")
    options = parser.parse_args()
    ray.init(ignore_reinit_error=True)
    if options.workers >= (cores := int(ray.cluster_resources()["CPU"])):  # it would wait forever
        parser.error(f"--workers: expected fewer than {cores} cores, as reading needs one, too")
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    shards = ray.data.read_parquet(options.input)
    shards.repartition(target_num_rows_per_block=options.rows).map_batches(
        AddPredictions,
        fn_constructor_args=[os.path.abspath(options.source)],
        batch_format="pyarrow",
        batch_size=1024,
        num_cpus=1,  # and so one thread
        compute=ray.data.ActorPoolStrategy(size=options.workers),
    ).write_parquet(options.output, mode="error")
