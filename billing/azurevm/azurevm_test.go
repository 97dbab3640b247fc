package azurevm

import "testing"

func TestInstanceID(t *testing.T) {
	const set = "/subscriptions/1caa/resourceGroups/MC_x/providers/Microsoft.Compute/virtualMachineScaleSets/"
	for _, c := range []struct{ resource, vm, want string }{
		{set + "aks-gpu-123-vmss", "aks-gpu-123-vmss_2", "aks-gpu-123-vmss/2"},
		{set + "aks-gpu_a-1-vmss", "aks-gpu_a-1-vmss_3", "aks-gpu_a-1-vmss/3"}, // the last "_": fault 19
		{set + "aks-gpu-123-vmss", "aks-gpu-123-vmss_010", "aks-gpu-123-vmss/10"},
		{set + "AKS-GPU-123-VMSS", "aks-gpu-123-vmss_0", "aks-gpu-123-vmss/0"}, // cases differ
		{set + "aks-gpu-123-vmss", "aks-gpu-123-vmss00000b", "aks-gpu-123-vmss/11"},
		{set + "aks-gpu-123-vmss/virtualMachines/7", "", "aks-gpu-123-vmss/7"},
		{set + "aks-gpu-123-vmss", "", ""},
		{set + "aks-gpu-123-vmss", "other-vmss_2", ""},
		{set + "aks-gpu-123-vmss", "aks-gpu-123-vmss_99999999999999999999", ""},
		{"/subscriptions/1/resourcegroups/x/providers/microsoft.compute/virtualmachines/Train-1", "", "train-1"},
		{"/subscriptions/1/resourceGroups/x/providers/Microsoft.Compute/disks/d", "", ""},
		{"i-0abc", "", ""},
	} {
		if got := InstanceID(c.resource, c.vm); got != c.want {
			t.Errorf("%s %s: %q, want %q", c.resource, c.vm, got, c.want)
		}
	}
}
