"""Which function of `mindspore.ops` computes the same as a primitive.

Goes out: the names of functions by those of primitives. Called by `operators.table`, so that each fact about
a function (what rounds, which argument is an index) is known of its primitive, too; and by the bench, because
most of them have the same name in torch.
"""


def _named(text: str) -> dict[str, str]:
    """Return the second part of words `Primitive=function` by the first."""
    return dict(word.split("=") for word in text.split())


# Functions of one tensor, of two operands, and activations, each by its name in torch.
OF_ONE = _named(
    """Abs=abs Acos=acos Acosh=acosh Asin=asin Asinh=asinh Atan=atan Atanh=atanh Ceil=ceil Cos=cos Cosh=cosh
    Erf=erf Erfc=erfc Exp=exp Expm1=expm1 Floor=floor IsFinite=isfinite IsInf=isinf IsNan=isnan Log=log
    Log1p=log1p LogicalNot=logical_not Neg=neg OnesLike=ones_like Reciprocal=reciprocal Inv=reciprocal
    Rint=round Rsqrt=rsqrt Sigmoid=sigmoid Sign=sign Sin=sin Sinh=sinh Sqrt=sqrt Square=square Tan=tan
    Tanh=tanh Trunc=trunc ZerosLike=zeros_like"""
)
OF_TWO = _named(
    """Add=add Atan2=atan2 Div=div Equal=eq FloorDiv=floor_divide FloorMod=remainder Greater=gt
    GreaterEqual=ge Less=lt LessEqual=le LogicalAnd=logical_and LogicalOr=logical_or Maximum=maximum
    Minimum=minimum Mul=mul NotEqual=ne Pow=pow RealDiv=div Sub=sub Xlogy=xlogy"""
)
ACTIVATIONS = _named(
    """HSigmoid=hardsigmoid HSwish=hardswish LogSigmoid=logsigmoid Mish=mish ReLU=relu ReLU6=relu6 SeLU=selu
    SiLU=silu Softplus=softplus Softsign=softsign"""
)
# The arguments that both have stand at the same places.
_OTHERS = _named(
    """Argmax=argmax Argmin=argmin AvgPool=avg_pool2d BatchMatMul=bmm
    BCEWithLogitsLoss=binary_cross_entropy_with_logits BiasAdd=bias_add
    BinaryCrossEntropy=binary_cross_entropy BroadcastTo=broadcast_to Cast=cast Concat=concat
    concat_impl=concat Conv2D=conv2d Conv2DBackpropInput=conv_transpose2d
    Conv2DTranspose=conv_transpose2d Conv3D=conv3d CumSum=cumsum Dense=dense Elu=elu
    ExpandDims=expand_dims Flatten=flatten Gather=gather GatherD=gather_d GatherNd=gather_nd GeLU=gelu
    HShrink=hardshrink KLDivLoss=kl_div LayerNorm=layer_norm Lerp=lerp LogSoftmax=log_softmax
    MaskedFill=masked_fill MatMul=matmul MatMulExt=matmul MaxPool=max_pool2d NLLLoss=nll_loss
    OneHot=one_hot Pad=pad PReLU=prelu Range=range ReduceAll=all ReduceAny=any ReduceMax=amax
    ReduceMean=mean ReduceMin=amin ReduceProd=prod ReduceSum=sum Reshape=reshape ReverseV2=reverse
    ScatterNd=scatter_nd Select=select Slice=slice SmoothL1Loss=smooth_l1_loss Softmax=softmax
    softmax_impl=softmax SoftShrink=soft_shrink SparseSoftmaxCrossEntropyWithLogits=cross_entropy
    Split=split Squeeze=squeeze squeeze_impl=squeeze Stack=stack StridedSlice=strided_slice
    TensorScatterAdd=tensor_scatter_add TensorScatterUpdate=tensor_scatter_update Tile=tile TopK=top_k
    Transpose=transpose Tril=tril Triu=triu UnsortedSegmentSum=unsorted_segment_sum Unstack=unstack"""
)
FUNCTIONS = {**OF_ONE, **OF_TWO, **ACTIVATIONS, **_OTHERS}
