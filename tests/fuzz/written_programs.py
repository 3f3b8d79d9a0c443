"""Programs of a few statements, written by hand."""

from fuzzing import syntax

FLOAT3 = syntax.Type(syntax.FLOAT, (3,))
SHARED = syntax.Setting(
    placement="shared", num_replicas=2, num_steps=1, feed="values", seed=0
)


def program(statements, *outputs, variables=(), setting=SHARED):
    """A program of the input ``b``."""
    return syntax.Program(
        inputs=(("b", FLOAT3),),
        variables=tuple(variables),
        statements=tuple(statements),
        outputs=outputs,
        setting=setting,
    )


def weight(**changes):
    """The variable ``w``."""
    defaults = {"name": "w", "type": FLOAT3, "seed": 0, "trainable": False}
    return syntax.Variable(**(defaults | changes))


def compute(result, template, *arguments):
    """One operation."""
    return syntax.Compute(result=result, template=template, arguments=arguments)
