"""What is checked of the free-form pod template of a GPUWorkload when it is created."""

from typing import Any

POD_TEMPLATE: dict[str, Any] = {
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
            "required": ["containers"],
            "x-kubernetes-validations": [
                {
                    "rule": "!has(self.nodeName)",
                    "message": "nodeName would bypass the scheduler and the count of free GPUs: remove it, and use"
                    " nodeSelector or affinity to choose nodes",
                }
            ],
            "properties": {
                "nodeName": {"type": "string", "maxLength": 253},
                # A Job takes no other; said here, because the Job is only created later.
                "restartPolicy": {"type": "string", "enum": ["Never", "OnFailure"]},
                "containers": {
                    "type": "array",
                    "maxItems": 64,
                    "items": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                        "required": ["name", "image"],
                        "properties": {
                            "name": {"type": "string", "minLength": 1, "maxLength": 63},
                            "image": {"type": "string", "minLength": 1, "maxLength": 1024},
                        },
                    },
                    "x-kubernetes-validations": [
                        {
                            "rule": "self.size() > 0",
                            "message": "podTemplate.spec.containers is empty: add at least one container with a name"
                            " and an image; the first one gets the GPUs",
                        }
                    ],
                },
            },
        },
    },
}
