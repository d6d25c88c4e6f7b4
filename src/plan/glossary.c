#include "plan/plan_report.h"

const struct kd_glossary kd_plan_glossary[] = {
    {"active", "parameters used for one token: everything outside the experts, and 16 experts a "
               "layer"},
    {"band", "0.45 to 0.70 of the ceiling: what engines have reached on comparable models"},
    {"bits, bpw",
     "bits per weight; for EXL3 the average of the routed experts' codes, without their "
     "scales"},
    {"calibration", "running sample text through the model to learn which weights matter"},
    {"ceiling", "a speed that memory traffic allows and no engine reaches"},
    {"collective",
     "a sum or exchange of a few kilobytes over all devices, some 278 for each token"},
    {"cut",
     "splitting each layer over devices (tensor parallel): each holds a slice of every matrix"},
    {"device", "one GPU or one Spark; a machine can have several"},
    {"expert", "one of the 896 small networks in a layer; a token uses 16 of them"},
    {"EXL3", "a format of 1 to 8 bits a weight whose codes are paths through a trellis"},
    {"GB, GiB", "1,000,000,000 bytes, and 1,073,741,824 bytes"},
    {"Grace", "the CPU side of a GB300, whose memory the GPU reads over a slower link"},
    {"HBM", "a GPU's own fast memory"},
    {"Hessian", "a summary of the calibration: which errors hurt most"},
    {"hit rate", "share of expert reads that find their expert in the fastest memory"},
    {"KDA", "the linear attention of 69 layers: a state of fixed size, whatever the context"},
    {"KLD", "how far a quantized model's predictions are from the original's; 0 is identical"},
    {"latent cache", "what the 24 full-attention layers keep of each token: 27,648 bytes in BF16"},
    {"MXFP4", "the 4.25-bit format in which K3's experts are released"},
    {"prefill", "reading the prompt, before the first new token"},
    {"reserve", "memory kept for the system, working buffers and a margin"},
    {"resident", "share of the experts that lies in the fastest memory"},
    {"tiles", "16 x 16 weights, what the encoder searches at a time"},
    {"trunk", "everything read for each token: attention, shared experts, routers, head"},
    {"unified", "one memory for CPU and GPU: the system's share comes off"},
    {0}};
