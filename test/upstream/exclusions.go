package upstream

// An Exclusion is a spec of critest that does not count.
type Exclusion struct {
	Spec   string // its whole name, as critest prints it
	Reason string
	// Itself means that the spec runs where the kernel can do what it is about,
	// and skips itself elsewhere. It may fail nowhere.
	Itself bool
}

// Exclusions lists them all. The specs on SELinux are not among them: critest
// has them on a kernel with SELinux only, and there they count.
func Exclusions() []Exclusion {
	const noAppArmor = "loads AppArmor profiles into the kernel, which the throwaway node shares with this machine (and which may have no AppArmor)"
	return []Exclusion{
		{
			Spec:   "[k8s.io] Image Manager public image with digest should be pulled and removed [Conformance]",
			Reason: "asks for the digest of upstream's own image, whose content cannot be made here",
		},
		{
			Spec:   "[k8s.io] Security Context UserNamespaces when Host idmap mount support is needed runtime should support NamespaceMode_POD",
			Reason: "needs ID-mapped mounts of a tmpfs: Linux 6.3",
			Itself: true,
		},
		{Spec: "[k8s.io] AppArmor runtime should support deprecated apparmor_profile field should fail with an unloaded apparmor_profile", Reason: noAppArmor},
		{Spec: "[k8s.io] AppArmor runtime should support deprecated apparmor_profile field should enforce a apparmor_profile blocking writes", Reason: noAppArmor},
		{Spec: "[k8s.io] AppArmor runtime should support deprecated apparmor_profile field should enforce a permissive deprecated profile", Reason: noAppArmor},
		{Spec: "[k8s.io] AppArmor runtime should support apparmor field should fail with an unloaded apparmor_profile", Reason: noAppArmor},
		{Spec: "[k8s.io] AppArmor runtime should support apparmor field should enforce a apparmor_profile blocking writes", Reason: noAppArmor},
		{Spec: "[k8s.io] AppArmor runtime should support apparmor field should enforce a permissive deprecated profile", Reason: noAppArmor},
		{Spec: "[k8s.io] AppArmor runtime should prefer new apparmor field should fail with an unloaded apparmor_profile", Reason: noAppArmor},
		{Spec: "[k8s.io] AppArmor runtime should prefer new apparmor field should enforce a apparmor_profile blocking writes", Reason: noAppArmor},
		{Spec: "[k8s.io] AppArmor runtime should prefer new apparmor field should work with apparmor profile", Reason: noAppArmor},
	}
}
