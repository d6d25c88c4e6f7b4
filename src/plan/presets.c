/* The machines that plan knows. "plan document" is the plan for 8 Sparks or one GB300 of October
 * 2026; "serving", "exl3", "farm" are this project's specifications, November 2026. A bandwidth
 * without a measured figure is 0.85 of the data sheet's, the share the plan document uses. */
#include "plan/machine.h"

#define E        "estimate"
#define DOC      "plan document, Oct 2026"
#define SHEET(x) x " data sheet"
#define SHARE(x) "0.85 of " x ", data sheet"
#define NVL      "NVLink 4, 450 GB/s one way, data sheet"
#define NCCL     "NCCL in CUDA graphs on H200, serving 5.5, Nov 2026"
#define PCIE     "PCIe 5 x16, 28 to 55 GB/s, serving 4.3, Nov 2026"
#define ENC_H200 "measured on one H200 at 2.3125 bits, docs/performance.md, Nov 2026"
#define BY_SM    "estimate: the H200's rate by number of SMs"
#define GEN5     "one Gen5 drive, serving 4.3, Nov 2026"
#define GEN4     "one Gen4 drive, serving 4.4, Nov 2026"
#define EACH_PC                                                                                    \
    "4090:2 and the like count PCs, each with its own memory and drive, but linked as fast as "    \
    "cards in one: for two cards in one PC describe it in a file"
#define DESKTOP "dual-channel desktop, serving 7.3, Nov 2026"

// clang-format off
const struct kd_preset kd_presets[] = {
    {.key = "spark", .title = "NVIDIA DGX Spark (GB10)",
     .note = "memory is shared with the host; 40 us a collective is a figure of two Sparks, nobody has published eight (farm 6.2: 55 to 90 with NCCL, 20 to 31 with a one-shot exchange)",
     .tier = {{KD_MEM_UNIFIED, {115.7, DOC}, {220, "plan document, Oct 2026; 231 to 234 reached by a plain reader, exl3 6.5"},
                                {11.7, "plan document, Oct 2026: working memory 6; margin 5.7 is stated nowhere, backed out"}},
              {KD_MEM_NVME, {3700, "4 TB model, data sheet"}, {5, "serving 4.5, Nov 2026"}, {100, E}}},
     .tflops = {15.5, "TensorFold GLM-5.3 on four Sparks, serving 3.5, Nov 2026"},
     .fp32_tflops = {31, DOC}, .tiles_s = {86000, "estimate: 48 SMs of an H200 at 2.3125 bits by a Spark's way of searching, docs/performance.md; 68 GB/s at 776 KB a tile"},
     .link_gb_s = {25, "200 GbE, serving appendix B, Nov 2026"}, .collective_us = {40, "plan document, Oct 2026; a 2-Spark NCCL figure, farm 0"},
     .watts = {240, "power supply, data sheet"}, .price_usd = {4699, "list price in a press report, Jun 2026"}},
    {.key = "gb300", .title = "DGX Station GB300",
     .tier = {{KD_MEM_HBM, {250.7, DOC}, {6035, "0.85 of 7.1 TB/s, gguf-slicing Decision 9"},
                            {2.7, "backed out: with 62 on the Grace side it makes the document's 680 GiB, which it does not explain"}},
              {KD_MEM_GRACE, {494, DOC}, {349, "C2C reads, serving 7.1, Nov 2026"}, {62, "plan document's figure 6: OS and slack, Oct 2026"}},
              {KD_MEM_NVME, {3700, E}, {12.9, GEN5}, {100, E}}},
     .tflops = {1000, "effective, serving 3.5, Nov 2026"}, .fp32_tflops = {83, DOC}, .tiles_s = {474000, BY_SM},
     .link_gb_s = {50, E}, .collective_us = {31, NCCL}, .watts = {1600, E},
     .price_usd = {96996, "one system's shop price in a press report, Jun 2026"}},
    {.key = "h100", .title = "NVIDIA H100 SXM 80 GB",
     .tier = {{KD_MEM_HBM, {74.5, SHEET("80 GB,")}, {2848, SHARE("3.35 TB/s")}, {4, E}}},
     .tflops = {400, E}, .fp32_tflops = {67, SHEET("H100")}, .tiles_s = {391000, "estimate: as the H200, the same chip"},
     .link_gb_s = {450, NVL}, .collective_us = {31, NCCL}, .watts = {700, SHEET("H100")},
     .price_usd = {27500, "25 to 30 thousand list, Kimi-K3 hardware thread, 2026"}},
    {.key = "h200", .title = "NVIDIA H200 SXM 141 GB",
     .tier = {{KD_MEM_HBM, {131.3, SHEET("141 GB,")}, {4080, SHARE("4.8 TB/s")}, {4, E}}},
     .tflops = {400, E}, .fp32_tflops = {67, SHEET("H200")}, .tiles_s = {391000, ENC_H200},
     .link_gb_s = {450, NVL}, .collective_us = {31, NCCL}, .watts = {700, SHEET("H200")}, .price_usd = {32000, E}},
    {.key = "b200", .title = "NVIDIA B200 180 GB",
     .tier = {{KD_MEM_HBM, {167.6, SHEET("180 GB,")}, {6800, SHARE("8 TB/s")}, {4, E}}},
     .tflops = {900, E}, .fp32_tflops = {75, SHEET("B200")}, .tiles_s = {438000, BY_SM},
     .link_gb_s = {900, "NVLink 5, 900 GB/s one way, data sheet"}, .collective_us = {31, NCCL}, .watts = {1000, SHEET("B200")}, .price_usd = {40000, E}},
    {.key = "b300", .title = "NVIDIA B300 288 GB",
     .tier = {{KD_MEM_HBM, {268.2, SHEET("288 GB,")}, {6800, SHARE("8 TB/s")}, {4, E}}},
     .tflops = {1000, E}, .fp32_tflops = {75, "HGX B300, published notes, 2026"}, .tiles_s = {474000, BY_SM},
     .link_gb_s = {900, "NVLink 5, 900 GB/s one way, data sheet"}, .collective_us = {31, NCCL}, .watts = {1400, SHEET("B300")}, .price_usd = {50000, E}},
    {.key = "rtx-pro-6000", .title = "RTX PRO 6000 Blackwell 96 GB",
     .tier = {{KD_MEM_HBM, {95, SHEET("96 GB,")}, {1523, SHARE("1.792 TB/s")}, {4, E}},
              {KD_MEM_RAM, {128, E}, {65, DESKTOP}, {16, E}}, {KD_MEM_NVME, {1800, E}, {12.9, GEN5}, {100, E}}},
     .tflops = {200, E}, .fp32_tflops = {125, SHEET("RTX PRO 6000")}, .tiles_s = {153000, "reported at K=4, 106 to 153 thousand, exl3 5.4, Nov 2026"},
     .link_gb_s = {50, PCIE}, .collective_us = {41.5, "RTX 5090 over PCIe, serving 5.5, Nov 2026"}, .watts = {600, SHEET("RTX PRO 6000")},
     .price_usd = {8565, "list price in a press report, Apr 2026"}},
    {.key = "5090", .title = "PC with a GeForce RTX 5090 32 GB", .note = EACH_PC,
     .tier = {{KD_MEM_HBM, {31, SHEET("32 GB,")}, {1500, "serving appendix B, Nov 2026"}, {2, E}},
              {KD_MEM_RAM, {125, "128 GB, estimate"}, {65, DESKTOP}, {13, E}}, {KD_MEM_NVME, {1800, E}, {12.9, GEN5}, {100, E}}},
     .tflops = {100, "serving appendix B, Nov 2026"}, .fp32_tflops = {105, SHEET("RTX 5090")}, .tiles_s = {140000, E},
     .link_gb_s = {50, PCIE}, .collective_us = {41.5, "serving 5.5, Nov 2026"}, .watts = {575, "card only, data sheet"},
     .price_usd = {1999, "list price of the card, Jan 2025"}},
    {.key = "4090", .title = "PC with a GeForce RTX 4090 24 GB", .note = EACH_PC,
     .tier = {{KD_MEM_HBM, {23.5, SHEET("24 GB,")}, {857, SHARE("1.008 TB/s")}, {1.5, E}},
              {KD_MEM_RAM, {62, "64 GB, estimate"}, {60, "serving appendix B, Nov 2026"}, {8, E}}, {KD_MEM_NVME, {1800, E}, {6.5, GEN4}, {100, E}}},
     .tflops = {80, E}, .fp32_tflops = {83, SHEET("RTX 4090")}, .tiles_s = {120000, E},
     .link_gb_s = {25, "PCIe 4 x16, data sheet"}, .collective_us = {41.5, E}, .watts = {450, "card only, data sheet"},
     .price_usd = {1599, "list price of the card, Oct 2022"}},
    {.key = "3090", .title = "PC with a GeForce RTX 3090 24 GB", .note = EACH_PC,
     .tier = {{KD_MEM_HBM, {23.5, SHEET("24 GB,")}, {796, SHARE("936 GB/s")}, {1.5, E}},
              {KD_MEM_RAM, {62, "64 GB, estimate"}, {45, "estimate: dual-channel DDR4"}, {8, E}}, {KD_MEM_NVME, {1800, E}, {6.5, GEN4}, {100, E}}},
     .tflops = {35, E}, .fp32_tflops = {36, SHEET("RTX 3090")}, .tiles_s = {50000, E},
     .link_gb_s = {25, "PCIe 4 x16, data sheet"}, .collective_us = {41.5, E}, .watts = {350, "card only, data sheet"},
     .price_usd = {1499, "list price of the card, Sep 2020"}},
    {.key = "8gb", .title = "PC with an 8 GB graphics card", .note = EACH_PC,
     .tier = {{KD_MEM_HBM, {7.7, "8 GB"}, {231, SHARE("272 GB/s (RTX 4060)")}, {1, E}},
              {KD_MEM_RAM, {30, "32 GB, estimate"}, {60, E}, {4, E}}, {KD_MEM_NVME, {900, E}, {6.5, GEN4}, {50, E}}},
     .tflops = {15, E}, .fp32_tflops = {15, SHEET("RTX 4060")}, .tiles_s = {25000, E},
     .link_gb_s = {12, "PCIe 4 x8, data sheet"}, .collective_us = {60, E}, .watts = {115, "card only, data sheet"}, .price_usd = {299, "list price of the card, Jun 2023"}},
    {.key = "pc", .title = "plain PC, no GPU: 16 cores, 64 GB, one Gen4 drive",
     .tier = {{KD_MEM_RAM, {62, "64 GB"}, {60, "serving appendix B, Nov 2026"}, {8, E}}, {KD_MEM_NVME, {1800, E}, {6.5, GEN4}, {100, E}}},
     .tflops = {2, "serving appendix B, Nov 2026"}, .fp32_tflops = {2, E}, .tiles_s = {34000, "16 cores at 2,130 a core, exl3 Decision 8, Nov 2026"},
     .link_gb_s = {1.2, "10 GbE"}, .collective_us = {100, E}, .watts = {250, E}, .price_usd = {1800, E}},
    {.key = "mac", .title = "Apple Mac", .why_not = "Kondense runs on Linux, x86-64 and aarch64; there is no Metal backend and no macOS build",
     .tier = {{KD_MEM_UNIFIED, {448, "512 GB M3 Ultra less the system's share, estimate"}, {655, "0.8 of 819 GB/s, data sheet"}, {16, E}}},
     .tflops = {20, E}, .fp32_tflops = {28, E}, .tiles_s = {0, "none"}, .link_gb_s = {0, "none"}, .collective_us = {0, "none"},
     .watts = {270, E}, .price_usd = {9499, "list price, Mar 2025"}},
    {.key = NULL}};
// clang-format on

const struct kd_preset_num kd_api_usd_in = {3, "listings for Kimi K3, gguf-slicing 6.1, Nov 2026"},
                           kd_api_usd_out = {15,
                                             "listings for Kimi K3, gguf-slicing 6.1, Nov 2026"},
                           kd_usd_kwh = {0.17, "estimate: a household's electricity"};
