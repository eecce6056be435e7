import torch

# Small problems: a second thread costs more than it brings, and on a busy machine much more.
torch.set_num_threads(1)
