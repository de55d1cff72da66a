package inbox

import "fmt"

// spareDeliveries is how many deliveries are left to the broker's limit when a
// message is parked: room for a loss of the connection while it is being parked.
const spareDeliveries = 2

// nearLimit reports whether the broker would soon drop the message. It was
// delivered so often and never settled: something dies each time, perhaps
// because of it. A first delivery is never near, however low the limit.
func (d *Delivery) nearLimit() bool {
	return d.DeliveryLimit > 0 && d.DeliveryCount >= max(1, d.DeliveryLimit-spareDeliveries)
}

func (d *Delivery) errNearLimit() error {
	return fmt.Errorf("the broker has delivered it %d times before and drops it above %d", d.DeliveryCount, d.DeliveryLimit)
}
