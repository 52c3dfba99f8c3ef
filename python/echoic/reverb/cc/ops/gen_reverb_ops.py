"""Name Reverb's operations of TensorFlow graphs; calling one raises an error with its remedy."""

from echoic.reverb._engine.errors import absent

__getattr__ = absent(
    __name__,
    "reverb_client reverb_client_insert reverb_client_sample reverb_client_update_priorities "
    "reverb_pattern_dataset reverb_timestep_dataset reverb_trajectory_dataset",
    "call reverb.TFClient, or make one of the datasets",
)
