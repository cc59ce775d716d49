"""What a draw knows of the ready-made image models: parameters, and what a batch makes them keep.

measured: on the null GPU, in float32 with SGD, torch 2.11, torchvision 0.26, timm 1.0.31; `elements` is a 32nd of what the
allocated peak grows by from 32 to 64 images, as numbers of four bytes, so that convolutions' workspaces are in it.
Models which take seconds to trace are left out.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ImageModel:
    """Attributes:
    millions: Of parameters, with 1000 classes.
    millions_per_image: Of elements kept for backward.
    side: The images' own size.
    any_side: Whether it takes others, from 96 on.
    checkpoints: Whether its switch for gradient checkpointing works.
    """

    millions: float
    millions_per_image: float
    side: int
    any_side: bool
    checkpoints: bool = False

    @property
    def parameters(self) -> float:
        """How many there are."""
        return self.millions * 1e6

    @property
    def elements_per_image(self) -> float:
        """What an image of the model's own size makes it keep."""
        return self.millions_per_image * 1e6


TORCHVISION = {
    "alexnet": ImageModel(61.1, 1, 224, True),
    "vgg11": ImageModel(132.9, 12.8, 224, True),
    "vgg13_bn": ImageModel(133.1, 29.3, 224, True),
    "vgg16": ImageModel(138.4, 18.8, 224, True),
    "vgg16_bn": ImageModel(138.4, 32, 224, True),
    "vgg19": ImageModel(143.7, 20, 224, True),
    "resnet18": ImageModel(11.69, 5.57, 224, True),
    "resnet34": ImageModel(21.8, 8.03, 224, True),
    "resnet50": ImageModel(25.56, 21.6, 224, True),
    "resnet101": ImageModel(44.55, 31.9, 224, True),
    "wide_resnet50_2": ImageModel(68.88, 27.6, 224, True),
    "resnext50_32x4d": ImageModel(25.03, 28.3, 224, True),
    "densenet121": ImageModel(7.979, 32.7, 224, True),
    "googlenet": ImageModel(13, 12.4, 224, True),
    "inception_v3": ImageModel(27.16, 25, 299, False),
    "mobilenet_v2": ImageModel(3.505, 19.7, 224, True),
    "mobilenet_v3_small": ImageModel(2.543, 4.1, 224, True),
    "mobilenet_v3_large": ImageModel(5.483, 11.1, 224, True),
    "mnasnet0_5": ImageModel(2.219, 6.41, 224, True),
    "mnasnet1_0": ImageModel(4.383, 11.2, 224, True),
    "shufflenet_v2_x0_5": ImageModel(1.367, 2.86, 224, True),
    "shufflenet_v2_x1_0": ImageModel(2.279, 5.2, 224, True),
    "shufflenet_v2_x2_0": ImageModel(7.394, 9.79, 224, True),
    "squeezenet1_0": ImageModel(1.248, 9.22, 224, True),
    "squeezenet1_1": ImageModel(1.235, 5.55, 224, True),
    "efficientnet_b0": ImageModel(5.289, 22.2, 224, True),
    "efficientnet_b2": ImageModel(9.11, 32.3, 224, True),
    "regnet_x_400mf": ImageModel(5.496, 6.36, 224, True),
    "regnet_x_3_2gf": ImageModel(15.3, 22.4, 224, True),
    "regnet_x_16gf": ImageModel(54.28, 50.4, 224, True),
    "regnet_y_400mf": ImageModel(4.344, 8.47, 224, True),
    "regnet_y_1_6gf": ImageModel(11.2, 18, 224, True),
    "regnet_y_8gf": ImageModel(39.38, 43.6, 224, True),
    "convnext_tiny": ImageModel(28.59, 27.5, 224, True),
    "convnext_small": ImageModel(50.22, 43.8, 224, True),
    "convnext_base": ImageModel(88.59, 58.3, 224, True),
    "convnext_large": ImageModel(197.8, 87.3, 224, True),
    "vit_b_16": ImageModel(86.57, 32.1, 224, False),
    "vit_b_32": ImageModel(88.22, 8.23, 224, False),
    "vit_l_16": ImageModel(304.3, 84, 224, False),
    "vit_l_32": ImageModel(306.5, 21.4, 224, False),
    "swin_t": ImageModel(28.29, 26.9, 224, True),
    "swin_v2_t": ImageModel(28.35, 37.7, 224, True),
}
SEGMENTATION = {
    "fcn_resnet50": ImageModel(32.96, 53, 224, True),
    "deeplabv3_resnet50": ImageModel(39.64, 56.1, 224, True),
    "deeplabv3_mobilenet_v3_large": ImageModel(11.03, 19.2, 224, True),
    "lraspp_mobilenet_v3_large": ImageModel(3.222, 18.5, 224, True),
}
TIMM = {
    "resnet10t": ImageModel(5.435, 3.47, 176, True, True),
    "resnet14t": ImageModel(10.08, 7.05, 176, True, True),
    "resnet26d": ImageModel(16.01, 16.1, 224, True, True),
    "resnet50d": ImageModel(25.58, 23.6, 224, True, True),
    "resnetv2_50": ImageModel(25.55, 19.5, 224, True, True),
    "seresnet50": ImageModel(28.09, 27.2, 224, True, True),
    "ecaresnet26t": ImageModel(16.01, 24.7, 256, True, True),
    "skresnet18": ImageModel(11.96, 9.39, 224, True, True),
    "resnest14d": ImageModel(10.61, 15.6, 224, True, True),
    "resnext50_32x4d": ImageModel(25.03, 28.3, 224, True, True),
    "nf_resnet26": ImageModel(16, 10.8, 224, True, True),
    "nfnet_f0": ImageModel(71.49, 21.1, 192, True, True),
    "eca_nfnet_l0": ImageModel(24.14, 22, 224, True, True),
    "gernet_s": ImageModel(8.174, 5.34, 224, True, True),
    "gernet_m": ImageModel(21.14, 10.2, 224, True, True),
    "hrnet_w18_small": ImageModel(13.19, 10.9, 224, True, False),
    "dla34": ImageModel(15.74, 11.8, 224, True, False),
    "dpn68": ImageModel(12.61, 23.9, 224, True, True),
    "res2net50_26w_4s": ImageModel(25.7, 27.7, 224, True, True),
    "selecsls42": ImageModel(30.35, 11.3, 224, True, False),
    "vovnet39a": ImageModel(22.6, 18.8, 224, True, True),
    "ese_vovnet19b_dw": ImageModel(6.543, 18.7, 224, True, True),
    "tf_efficientnetv2_b0": ImageModel(7.14, 11.4, 192, True, True),
    "efficientnet_lite0": ImageModel(4.652, 19.8, 224, True, True),
    "mixnet_s": ImageModel(4.135, 17.3, 224, True, True),
    "ghostnet_100": ImageModel(5.183, 10.2, 224, True, True),
    "fbnetc_100": ImageModel(5.572, 13.4, 224, True, True),
    "mobilenetv3_large_100": ImageModel(5.483, 11.1, 224, True, True),
    "mobilenetv4_conv_small": ImageModel(3.774, 4.17, 224, True, True),
    "repvgg_a2": ImageModel(28.21, 9.76, 224, True, True),
    "repvgg_b0": ImageModel(15.82, 9.53, 224, True, True),
    "cspresnet50": ImageModel(21.62, 29.4, 256, True, False),
    "cspdarknet53": ImageModel(27.64, 40.3, 256, True, False),
    "darknet53": ImageModel(41.61, 30.5, 256, True, False),
    "xception41": ImageModel(26.97, 81.7, 299, True, True),
    "legacy_seresnet18": ImageModel(11.78, 6.33, 224, True, False),
    "hardcorenas_a": ImageModel(5.26, 11.4, 224, True, True),
    "lcnet_100": ImageModel(2.954, 7.78, 224, True, True),
    "tinynet_a": ImageModel(6.188, 17.8, 192, True, True),
    "rexnet_100": ImageModel(4.797, 23.1, 224, True, True),
    "repghostnet_100": ImageModel(4.074, 8.3, 224, True, True),
    "starnet_s1": ImageModel(2.869, 10.2, 224, True, True),
    "fastvit_t8": ImageModel(4.026, 17.7, 256, True, True),
    "convnext_atto": ImageModel(3.696, 7.99, 224, True, True),
    "convnext_nano": ImageModel(15.59, 17.3, 224, True, True),
    "convnext_tiny": ImageModel(28.59, 27.5, 224, True, True),
    "convnextv2_atto": ImageModel(3.708, 12.3, 224, True, True),
    "convnextv2_nano": ImageModel(15.62, 26.9, 224, True, True),
    "hgnet_small": ImageModel(24.36, 25.3, 224, True, True),
    "inception_next_tiny": ImageModel(28.06, 27.3, 224, True, True),
    "focalnet_tiny_srf": ImageModel(28.43, 31.7, 224, True, True),
    "regnety_008": ImageModel(6.263, 11.4, 224, True, True),
    "regnetz_b16": ImageModel(9.715, 32.2, 224, True, True),
    "deit_tiny_patch16_224": ImageModel(5.717, 7.7, 224, False, True),
    "deit_small_patch16_224": ImageModel(22.05, 15.2, 224, False, True),
    "deit_base_patch16_224": ImageModel(86.57, 30.3, 224, False, True),
    "deit3_small_patch16_224": ImageModel(22.06, 17, 224, False, True),
    "vit_tiny_patch16_224": ImageModel(5.717, 7.7, 224, False, True),
    "vit_small_patch16_224": ImageModel(22.05, 15.2, 224, False, True),
    "vit_base_patch16_224": ImageModel(86.57, 30.3, 224, False, True),
    "vit_base_patch32_224": ImageModel(88.22, 7.77, 224, False, True),
    "vit_large_patch16_224": ImageModel(304.3, 79.1, 224, False, True),
    "vit_base_patch8_224": ImageModel(86.58, 119, 224, False, True),
    "vit_small_patch32_224": ImageModel(22.88, 3.98, 224, False, True),
    "vit_medium_patch16_gap_240": ImageModel(44.4, 25.9, 240, False, True),
    "vit_so150m_patch16_reg4_gap_256": ImageModel(134.1, 56.7, 256, False, True),
    "beit_base_patch16_224": ImageModel(86.53, 33.9, 224, False, True),
    "beitv2_base_patch16_224": ImageModel(86.53, 33.9, 224, False, True),
    "eva02_tiny_patch14_224": ImageModel(5.502, 12.8, 224, False, True),
    "eva02_small_patch14_224": ImageModel(21.62, 25.2, 224, False, True),
    "coat_lite_tiny": ImageModel(5.722, 21.6, 224, False, False),
    "convmixer_768_32": ImageModel(21.11, 104, 224, True, True),
    "convmixer_1024_20_ks9_p14": ImageModel(24.38, 32.7, 224, True, True),
    "poolformer_s12": ImageModel(11.92, 15.2, 224, True, True),
    "poolformerv2_s12": ImageModel(11.89, 18.8, 224, True, True),
    "caformer_s18": ImageModel(26.34, 35.9, 224, True, True),
    "convformer_s18": ImageModel(26.77, 38.4, 224, True, True),
    "mvitv2_tiny": ImageModel(24.17, 33.5, 224, True, True),
    "edgenext_small": ImageModel(5.587, 18.7, 256, True, True),
    "edgenext_xx_small": ImageModel(1.327, 7.1, 256, True, True),
    "levit_128s": ImageModel(7.777, 4.09, 224, False, True),
    "mixer_b16_224": ImageModel(59.88, 30, 224, False, True),
    "mixer_s32_224": ImageModel(19.1, 4.82, 224, False, True),
    "gmlp_s16_224": ImageModel(19.42, 35.1, 224, False, True),
    "resmlp_12_224": ImageModel(15.35, 13.3, 224, False, True),
    "pvt_v2_b0": ImageModel(3.667, 11.6, 224, True, True),
    "pvt_v2_b1": ImageModel(14.01, 23.1, 224, True, True),
    "twins_svt_small": ImageModel(24.06, 20.9, 224, True, False),
    "twins_pcpvt_small": ImageModel(24.11, 30.6, 224, True, False),
    "xcit_nano_12_p16_224": ImageModel(3.053, 9.94, 224, True, True),
    "xcit_tiny_12_p16_224": ImageModel(6.716, 14.9, 224, True, True),
    "volo_d1_224": ImageModel(26.63, 29.9, 224, False, True),
    "swin_tiny_patch4_window7_224": ImageModel(28.29, 26.9, 224, False, True),
    "swinv2_tiny_window8_256": ImageModel(28.35, 45.5, 256, False, True),
    "swin_s3_tiny_224": ImageModel(28.33, 29, 224, False, True),
    "coatnet_pico_rw_224": ImageModel(10.85, 36.6, 224, False, True),
    "coatnet_0_rw_224": ImageModel(27.44, 41.6, 224, False, True),
    "crossvit_tiny_240": ImageModel(7.015, 10.8, 240, True, False),
    "pit_s_224": ImageModel(23.46, 11.2, 224, False, False),
    "pit_b_224": ImageModel(73.76, 29.7, 224, False, False),
    "visformer_small": ImageModel(40.22, 20.6, 224, False, True),
    "nest_tiny": ImageModel(17.06, 36.8, 224, False, True),
    "sequencer2d_s": ImageModel(27.65, 42.5, 224, True, False),
    "efficientformer_l1": ImageModel(12.29, 17.8, 224, False, True),
    "efficientformerv2_s0": ImageModel(3.6, 14.9, 224, False, True),
    "efficientvit_b0": ImageModel(3.41, 7.32, 224, True, True),
    "efficientvit_m2": ImageModel(4.188, 3.06, 224, True, True),
    "mobilevit_s": ImageModel(5.579, 45, 256, True, True),
    "mobilevitv2_100": ImageModel(4.902, 42.3, 256, True, True),
    "repvit_m1": ImageModel(5.485, 17.5, 224, True, True),
    "fasternet_t0": ImageModel(3.905, 4.97, 224, True, True),
    "hiera_tiny_224": ImageModel(27.91, 26.8, 224, False, True),
    "gcvit_xxtiny": ImageModel(12, 25.9, 224, False, True),
    "hieradet_small": ImageModel(34.73, 43.6, 256, True, True),
    "lambda_resnet26t": ImageModel(10.96, 25.2, 256, True, True),
    "botnet26t_256": ImageModel(12.49, 22.1, 256, False, True),
    "halonet26t": ImageModel(12.48, 22.2, 256, False, True),
    "sebotnet33ts_256": ImageModel(13.7, 39.8, 256, False, True),
    "samvit_base_patch16_224": ImageModel(86.46, 41.1, 224, True, True),
    "rdnet_tiny": ImageModel(23.86, 36.9, 224, True, True),
    "mambaout_femto": ImageModel(7.305, 18, 224, True, True),
    "efficientnet_b0": ImageModel(5.289, 22.2, 224, True, True),
    "semnasnet_100": ImageModel(3.887, 13.3, 224, True, True),
    "ghostnetv2_100": ImageModel(6.157, 15, 224, True, True),
}
