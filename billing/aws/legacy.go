package aws

import "strings"

// legacyName brings a name of a legacy report to that of CUR 2.0, as AWS does for Athena:
// lineItem/ResourceId is line_item_resource_id, savingsPlan/SavingsPlanARN is
// savings_plan_savings_plan_a_r_n. A name in that form stays, but for the spelling _arn
// that other tools give.
func legacyName(name string) string {
	category, rest, ok := strings.Cut(name, "/")
	if !ok {
		if renamed, ok := respelt[name]; ok {
			return renamed
		}
		return name
	}
	if category == "resourceTags" || category == "costCategory" { // the customer's own names
		return snake(category) + "_" + rest
	}
	return snake(category) + "_" + snake(rest)
}

var respelt = map[string]string{
	"reservation_reservation_arn":   columns[colRIARN],
	"savings_plan_savings_plan_arn": columns[colSPARN],
}

// snake puts an underscore before each capital but the first.
func snake(s string) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case r >= 'A' && r <= 'Z':
			if i > 0 {
				b.WriteByte('_')
			}
			b.WriteRune(r - 'A' + 'a')
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
