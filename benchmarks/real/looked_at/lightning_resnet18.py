"""Lightning trains a ResNet-18 on pictures that two loader workers crop, flip and normalise, fp32."""

import os

import pytorch_lightning as pl
import torch
import torchvision
from torchvision import transforms

FIX = os.environ.get("FIX", "").split(",")
dev = "cuda" if torch.cuda.is_available() else "cpu"
b, size = (64, 224) if dev == "cuda" else (2, 32)


class Pictures(torch.utils.data.Dataset):
    def __init__(self):
        self.raw = torch.randint(0, 256, (64, 3, size + 32, size + 32), dtype=torch.uint8)
        self.transform = transforms.Compose([
            transforms.ToPILImage(), transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(),
            transforms.ToTensor(), transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ])  # fmt: skip

    def __len__(self):
        return 2_000_000

    def __getitem__(self, i):
        return self.transform(self.raw[i % 64]), i % 1000


class LitResNet(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torchvision.models.resnet18()

    def training_step(self, batch, _):
        images, target = batch
        loss = torch.nn.functional.cross_entropy(self.model(images), target)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)


loader = torch.utils.data.DataLoader(
    Pictures(),
    batch_size=b,
    num_workers=12 if "workers" in FIX else 2,
    pin_memory=dev == "cuda" and "pin" in FIX,
)
trainer = pl.Trainer(
    max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    precision="bf16-mixed" if "bf16" in FIX else "32-true",
)  # fmt: skip
trainer.fit(LitResNet(), loader)
