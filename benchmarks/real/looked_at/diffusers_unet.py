"""diffusers' unconditional training example: UNet2DModel learns the noise of 64-pixel pictures, fp32, with EMA off."""

import os

import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler, UNet2DModel

FIX = os.environ.get("FIX", "").split(",")
dev = "cuda" if torch.cuda.is_available() else "cpu"
b, size = (16, 64) if dev == "cuda" else (1, 32)
torch.manual_seed(0)
if "tf32" in FIX:
    torch.set_float32_matmul_precision("high")

model = UNet2DModel(
    sample_size=size, in_channels=3, out_channels=3, layers_per_block=2, block_out_channels=(128, 128, 256, 256, 512),
    down_block_types=("DownBlock2D", "DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D", "UpBlock2D"),
)  # fmt: skip
model = model.to(dev).train()
net = torch.compile(model) if "compile" in FIX else model
noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(100_000):
    clean = torch.randn(b, 3, size, size).to(dev)
    noise = torch.randn(clean.shape, device=dev)
    timesteps = torch.randint(0, 1000, (b,), device=dev)
    noisy = noise_scheduler.add_noise(clean, noise, timesteps)
    with torch.autocast(dev, torch.bfloat16, enabled="bf16" in FIX):
        loss = F.mse_loss(net(noisy, timesteps).sample.float(), noise)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    shown = loss.detach().item()
