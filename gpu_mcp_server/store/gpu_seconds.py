"""GPU seconds of a finished job, as SQL over its record."""

GPU_S = "coalesce(record ->> 'gpu_s', json_array_length(record, '$.gpus') * coalesce(record ->> 'wall_s', 0), 0)"
"""What its host charged a job that shared a GPU; seconds times GPUs of any other."""
